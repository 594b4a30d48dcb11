from types import SimpleNamespace

import pytest
import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.strategies import FSDPStrategy
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader

from vitrail.errors import UserError
from vitrail.model import ViT
from vitrail.training.ema import EMA
from vitrail.training.schedule import WarmupCosine
from vitrail.training.strategies import FSDP

DATA, ONE = DataLoader(torch.zeros(3, 1)), DataLoader(torch.zeros(1, 1))


class Scalar(LightningModule):
    """One weight, from 0 on, with gradient 1 and SGD at rate 1: after n steps it is -n."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(0.0))
        self.register_buffer("index", torch.tensor([7, 13, 21]))
        self.register_buffer("statistic", torch.tensor(0.0))
        self.validated = []

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)

    def training_step(self, batch):
        self.statistic += 1
        return self.weight.clone()

    def validation_step(self, batch):
        self.validated.append(self.weight.item())

    test_step = validation_step


@pytest.fixture
def fit(trainer, tmp_path):
    """fit(model, steps, …) -> the trainer after so many steps, and its last checkpoint."""

    def run(model, steps, *, ema=True, ckpt_path=None, data=DATA, **given):
        saving = ModelCheckpoint(tmp_path / "checkpoints", save_last=True, save_top_k=0)
        callbacks = [EMA(0.9), saving] if ema else [saving]
        fitted = trainer(max_steps=steps, callbacks=callbacks, enable_checkpointing=True, **given)
        fitted.fit(model, data, ONE, ckpt_path=ckpt_path)
        return fitted, torch.load(saving.last_model_path, weights_only=True)

    return run


@pytest.fixture
def last(tmp_path):
    """The checkpoint that the next training goes on from."""
    return tmp_path / "checkpoints/last.ckpt"


def weights(checkpoint) -> tuple[float, float]:
    """The raw weight and the averaged one."""
    pair = (checkpoint[key]["weight"].item() for key in ("current_model_state", "state_dict"))
    return tuple(pytest.approx(weight, rel=2e-6) for weight in pair)


def warming(steps: int) -> float:
    """The average of 0, -1, -2, … whose decay begins at 0.1 and ends, after 80 steps, at 0.9."""
    average = 0.0
    for t in range(steps):
        decay = min(0.9, (1 + t) / (10 + t))
        average = decay * average - (1 - decay) * (t + 1)
    return average


def test_the_decay_warms_up_and_goes_on_where_it_was(fit, last):
    fit(Scalar(), 3)
    _, checkpoint = fit(Scalar(), 99, ckpt_path=last, check_val_every_n_epoch=33)
    assert weights(checkpoint) == (-99.0, warming(99))


@pytest.mark.parametrize("sanity", [0, 1])
def test_three_steps_then_one_more_in_a_new_process(fit, last, sanity):
    model = Scalar()
    _, checkpoint = fit(model, 3, num_sanity_val_steps=sanity)
    assert weights(checkpoint) == (-3.0, warming(3))
    assert model.validated == pytest.approx([0.0] * sanity + [warming(3)])
    assert model.weight.item() == pytest.approx(warming(3)), "a trained module holds the average"

    resumed = Scalar()
    _, checkpoint = fit(resumed, 4, ckpt_path=last, num_sanity_val_steps=sanity)
    assert weights(checkpoint) == (-4.0, warming(4))
    assert resumed.weight.item() == pytest.approx(warming(4))


def test_without_averaging_a_checkpoint_says_nothing_of_it(fit):
    _, checkpoint = fit(Scalar(), 3, ema=False)
    assert checkpoint["state_dict"]["weight"] == -3
    assert not checkpoint.keys() & {"current_model_state", "averaging_state"}


def test_several_batches_for_a_step_are_one_update(fit):
    six = DataLoader(torch.zeros(6, 1))
    _, checkpoint = fit(Scalar(), 3, data=six, accumulate_grad_batches=2)
    assert weights(checkpoint) == (-3.0, warming(3))


def test_evaluating_a_checkpoint_with_the_trainer_that_wrote_it_gives_the_average(fit, last):
    model = Scalar()
    trainer, _ = fit(model, 3)
    model.validated.clear()
    trainer.validate(model, ONE, verbose=False)
    trainer.validate(model, ONE, ckpt_path=last, verbose=False)
    trainer.test(model, ONE, ckpt_path=last, verbose=False)
    assert model.validated == pytest.approx([warming(3)] * 3)


def test_a_checkpoint_written_during_validation_or_after_training_holds_both(fit, tmp_path):
    class Interrupted(Scalar):
        def validation_step(self, batch):
            self.trainer.save_checkpoint(tmp_path / "during.ckpt")

    trainer, _ = fit(Interrupted(), 3)
    trainer.save_checkpoint(tmp_path / "after.ckpt")
    for name in ("during.ckpt", "after.ckpt"):
        checkpoint = torch.load(tmp_path / name, weights_only=True)
        assert weights(checkpoint) == (-3.0, warming(3))


def test_averaging_may_begin_with_a_checkpoint_that_has_none(fit, last):
    fit(Scalar(), 3, ema=False)
    with pytest.warns(UserWarning, match="not created with WeightAveraging"):
        _, checkpoint = fit(Scalar(), 4, ckpt_path=last)
    assert weights(checkpoint) == (-4.0, 0.1 * -3 + 0.9 * -4)


def test_buffers_of_integers_are_copied_and_those_of_floats_averaged(fit):
    _, checkpoint = fit(Scalar(), 3)
    assert checkpoint["state_dict"]["index"].tolist() == [7, 13, 21]
    assert checkpoint["state_dict"]["statistic"].item() == pytest.approx(-warming(3))


def test_a_module_that_was_compiled_in_place_is_averaged_too(fit):
    class Compiled(Scalar):
        def __init__(self):
            super().__init__()
            self.network = torch.nn.Linear(1, 1)
            self.network.compile(backend="eager")

        def training_step(self, batch):
            return super().training_step(batch) + 0 * self.network(batch).sum()

    _, checkpoint = fit(Compiled(), 3)
    assert weights(checkpoint) == (-3.0, warming(3))
    assert "network.weight" in checkpoint["state_dict"]


def test_an_update_reads_no_value(trainer, readings):
    model, ema = Scalar(), EMA(0.9)
    ema.setup(trainer(), model, "fit")
    with readings:
        ema._average_model.update_parameters(model)
    assert not readings.stacks


@pytest.mark.parametrize("strategy", [FSDP(), FSDPStrategy()])
def test_sharded_weights_are_refused_before_anything_is_averaged(strategy):
    with pytest.raises(UserError, match="keeps shards of them; use trainer=ddp or ema_decay=null"):
        EMA(0.9).setup(SimpleNamespace(strategy=strategy), Scalar(), "fit")


@pytest.mark.parametrize("decay", [0, 1, 1.5])
def test_a_decay_that_averages_nothing_is_refused(decay):
    with pytest.raises(ValueError, match=r"ema_decay must be in \(0, 1\), such as 0.999"):
        EMA(decay)


def test_a_short_training_on_digits_is_averaged_to_what_it_learned(trainer, classify, optim):
    digits = load_digits()
    images = torch.from_numpy(digits.images).float()[:, None].expand(-1, 3, -1, -1) / 8 - 1
    pairs = zip(images.split(64), torch.from_numpy(digits.target).long().split(64), strict=True)
    batches = [(image, label, None) for image, label in pairs]
    train = DataLoader(batches[:22], batch_size=None, shuffle=True)
    held = DataLoader(batches[22:], batch_size=None)
    torch.manual_seed(0)
    network = ViT(image_size=8, patch_size=2, dim=32, depth=2, heads=2, num_classes=10)
    schedule = WarmupCosine(warmup=0.1, final=0.0)
    model = classify(10, network, optim=optim(lr=3e-3, weight_decay=0.05, schedule=schedule))
    fitted = trainer(max_epochs=12, callbacks=[EMA(0.999)], limit_val_batches=0)
    fitted.fit(model, train, held)
    averaged = fitted.test(model, held, verbose=False)[0]["test/acc"]
    fitted.callbacks[0]._swap_models(model)
    raw = trainer().test(model, held, verbose=False)[0]["test/acc"]
    assert averaged > 0.5, "264 steps have learned something"
    assert averaged >= raw - 0.02
