import pytest
import torch
from pytorch_lightning import Callback
from pytorch_lightning.callbacks import ModelCheckpoint

from vitrail.training.ema import EMA
from vitrail.training.schedule import WarmupCosine


class Rates(Callback):
    """The rate that each optimizer step was taken with, by step; ends after an epoch."""

    def __init__(self, stop_after):
        self.stop_after, self.by_step = stop_after, {}

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.by_step[trainer.global_step] = [group["lr"] for group in optimizer.param_groups]

    def on_train_epoch_end(self, trainer, pl_module):
        trainer.should_stop = trainer.current_epoch + 1 == self.stop_after


SCHEDULE = WarmupCosine(warmup=0.2, final=0.05)


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("every", [1, 2])
def test_stopping_and_resuming_takes_the_same_steps_as_going_straight(
    name, every, fit, classify, batched, optim, tmp_path
):
    def train(stop_after, folder, ckpt_path=None):
        """To that epoch of 4, of 7 batches with 2 for a step: the last step has one batch alone."""
        rates = Rates(stop_after)
        saving = ModelCheckpoint(tmp_path / folder, save_last=True, save_top_k=0)
        how = {"accumulate_grad_batches": 2, "check_val_every_n_epoch": every, "max_epochs": 4}
        how |= {"callbacks": [rates, EMA(0.9), saving], "enable_checkpointing": True}
        model = classify(3, optim=optim(name=name, lr=0.1, schedule=SCHEDULE))
        fitted = fit(model, batched(28, 4), ckpt_path=ckpt_path, **how)
        saved = torch.load(saving.last_model_path, weights_only=True)
        return fitted.current_epoch, rates.by_step, saved

    epochs, expected, whole = train(4, "straight")
    assert sorted(expected) == list(range(16))
    for step, rates in expected.items():
        assert rates == pytest.approx([0.1 * SCHEDULE.factor(step, 16)] * len(rates))

    _, first, _ = train(2, "parts")
    resumed, second, parts = train(4, "parts", tmp_path / "parts/last.ckpt")
    assert sorted(first) == list(range(8))
    assert sorted(second) == list(range(8, 16))
    assert first | second == expected
    assert resumed == epochs == 4
    for kind in ("state_dict", "current_model_state"):
        for key, value in whole[kind].items():
            torch.testing.assert_close(parts[kind][key], value, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "given, steps", [({"max_steps": 5, "max_epochs": 9}, 5), ({"max_epochs": 3}, 9)]
)
def test_the_schedule_ends_with_the_training_however_its_length_is_given(
    given, steps, fit, classify, batched, optim
):
    model = classify(3, optim=optim(schedule=WarmupCosine(warmup=0.0, final=0.0)))
    assert fit(model, batched(12, 4), **given).global_step == steps
    assert model.lr_schedulers().get_last_lr() == pytest.approx([0.0] * 2, abs=1e-12)
