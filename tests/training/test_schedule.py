import math

import pytest
import torch
from pytorch_lightning import Callback
from pytorch_lightning.callbacks import timer

from vitrail.training.schedule import WarmupCosine


@pytest.mark.parametrize(
    "warmup, final, expected",
    [
        (0.5, 0.2, [1 / 3, 2 / 3, 1.0, 0.6, 0.2, 0.2]),
        (0.0, 1.0, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        (1.0, 0.0, [0.2, 0.4, 0.6, 0.8, 1.0, 0.0]),
        (0.0, 0.0, [1.0, (2 + math.sqrt(2)) / 4, 0.5, (2 - math.sqrt(2)) / 4, 0.0, 0.0]),
    ],
    ids=["both", "neither", "warm-up", "fall"],
)
def test_the_rate_rises_in_equal_steps_falls_as_half_a_cosine_and_stays(warmup, final, expected):
    schedule = WarmupCosine(warmup=warmup, final=final)
    assert [schedule.factor(step, 4) for step in range(6)] == pytest.approx(expected)


def test_groups_keep_their_own_peaks():
    groups = [{"params": [torch.zeros(1)], "lr": 0.4}, {"params": [torch.zeros(1)], "lr": 0.1}]
    optimizer = torch.optim.SGD(groups)
    scheduler = WarmupCosine(warmup=0.5, final=0.0).attach(optimizer, 2)
    assert scheduler.get_last_lr() == [0.2, 0.05]
    optimizer.step()
    scheduler.step()
    assert scheduler.get_last_lr() == [0.4, 0.1]


@pytest.mark.parametrize("given", [{"warmup": 5, "final": 0}, {"warmup": 0, "final": -0.1}])
def test_a_share_outside_0_to_1_is_refused(given):
    with pytest.raises(ValueError, match=r"optim\.schedule\.\w+ must be in \[0, 1\], got"):
        WarmupCosine(**given)


def test_a_training_without_end_is_refused():
    with pytest.raises(ValueError, match=r"max_epochs, trainer.max_steps or trainer.max_time"):
        WarmupCosine(warmup=0.0, final=0.0).attach(torch.optim.SGD([torch.zeros(1)]), math.inf)


class Rates(Callback):
    """Every batch takes 6 s by Lightning's timer; the rates that steps are taken with."""

    def __init__(self, monkeypatch, stop_after: int | None):
        self.stop_after, self.found = stop_after, []
        monkeypatch.setattr(timer.time, "monotonic", lambda: 6.0 * len(self.found))

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.found.append(optimizer.param_groups[0]["lr"])
        trainer.should_stop = len(self.found) == self.stop_after


@pytest.fixture
def train(monkeypatch, classify, batched, trainer, optim, tmp_path):
    """train(max_time=…, …) -> the rates of the steps taken, two an epoch, at a peak of 1."""

    def run(*, warmup=0.0, stop_after=None, ckpt_path=None, **given) -> list[float]:
        rates = Rates(monkeypatch, stop_after)
        schedule = WarmupCosine(warmup=warmup, final=0.0)
        model = classify(3, optim=optim(lr=1.0, schedule=schedule))
        fitted = trainer(callbacks=[rates], limit_val_batches=0, **given)
        fitted.fit(model, batched(8, 4), [], ckpt_path=ckpt_path, weights_only=True)
        fitted.save_checkpoint(tmp_path / "last.ckpt")
        return rates.found

    return run


def cosine(*shares: float) -> list[float]:
    return pytest.approx([(1 + math.cos(math.pi * share)) / 2 for share in shares])


@pytest.mark.parametrize(
    "limits",
    [
        {"max_epochs": 100, "max_time": {"seconds": 30}},
        {"max_steps": 5, "max_time": {"days": 1}},
    ],
    ids=["time", "steps"],
)
def test_the_rate_ends_with_the_limit_that_comes_first(limits, train):
    assert train(**limits) == cosine(0, 0.2, 0.4, 0.6, 0.8)


def test_time_alone_may_end_a_training_and_its_warm_up(train):
    rates = train(max_epochs=-1, max_time={"seconds": 60}, warmup=0.4)
    assert rates[1:4] == pytest.approx([0.25, 0.5, 0.75], abs=1e-3)
    assert rates[4:] == cosine(*(step / 6 for step in range(6)))


def test_a_resumed_run_goes_on_from_the_time_that_has_passed(train, tmp_path):
    limits = {"max_epochs": 100, "max_time": {"seconds": 60}}
    straight = train(**limits)
    first = train(**limits, stop_after=4)
    resumed = train(**limits, ckpt_path=tmp_path / "last.ckpt")
    assert straight == cosine(*(step / 10 for step in range(10)))
    assert first + resumed == pytest.approx(straight)
