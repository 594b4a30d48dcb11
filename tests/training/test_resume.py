import pytest
import torch
from pytorch_lightning import Callback
from pytorch_lightning.callbacks import ModelCheckpoint

from vitrail.training.ema import EMA
from vitrail.training.schedule import WarmupCosine


class Rates(Callback):
    """The rate that each optimizer step was taken with, by step."""

    def __init__(self):
        self.by_step = {}

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.by_step[trainer.global_step] = [group["lr"] for group in optimizer.param_groups]


@pytest.fixture
def fit(classify, batched, trainer, optim, tmp_path):
    """fit(epochs, folder, …) -> rates and model after training to that epoch, of 4 in all.

    7 batches an epoch and 2 for a step: the last step of an epoch has one batch alone.
    """

    def run(stop_after, folder, *, name, every, ckpt_path=None):
        class Stop(Callback):
            def on_train_epoch_end(self, trainer, pl_module):
                trainer.should_stop = trainer.current_epoch + 1 == stop_after

        schedule = WarmupCosine(warmup=0.2, final=0.05)
        model = classify(3, optim=optim(name=name, lr=0.1, schedule=schedule))
        rates = Rates()
        saving = ModelCheckpoint(tmp_path / folder, save_last=True, save_top_k=0)
        fitted = trainer(
            max_epochs=4,
            callbacks=[rates, EMA(0.9), Stop(), saving],
            enable_checkpointing=True,
            accumulate_grad_batches=2,
            check_val_every_n_epoch=every,
        )
        data = batched(28, 4)
        fitted.fit(model, data, data, ckpt_path=ckpt_path)
        return fitted, rates.by_step, torch.load(saving.last_model_path, weights_only=True)

    return run


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("every", [1, 2])
def test_stopping_and_resuming_takes_the_same_steps_as_going_straight(fit, name, every, tmp_path):
    straight, expected, whole = fit(4, "straight", name=name, every=every)
    assert sorted(expected) == list(range(16))
    peak, schedule = 0.1, WarmupCosine(warmup=0.2, final=0.05)
    for step, rates in expected.items():
        assert rates == pytest.approx([peak * schedule.factor(step, 16)] * len(rates))

    _, first, _ = fit(2, "parts", name=name, every=every)
    resumed, second, parts = fit(
        4, "parts", name=name, every=every, ckpt_path=tmp_path / "parts/last.ckpt"
    )
    assert sorted(first) == list(range(8))
    assert sorted(second) == list(range(8, 16))
    assert first | second == expected
    assert resumed.current_epoch == straight.current_epoch == 4
    for kind in ("state_dict", "current_model_state"):
        for key, value in whole[kind].items():
            torch.testing.assert_close(parts[kind][key], value, atol=1e-6, rtol=0)


@pytest.mark.parametrize("given, steps", [({"max_steps": 5}, 5), ({"max_epochs": 3}, 9)])
def test_the_schedule_ends_with_the_training_however_its_length_is_given(
    given, steps, classify, batched, trainer, optim
):
    model = classify(3, optim=optim(schedule=WarmupCosine(warmup=0.0, final=0.0)))
    fitted = trainer(**given)
    fitted.fit(model, batched(12, 4), batched(4, 4))
    assert fitted.global_step == steps
    assert model.lr_schedulers().get_last_lr() == pytest.approx([0.0] * 2, abs=1e-12)
