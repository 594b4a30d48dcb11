"""Lightning's steps are timed in turn with those of others, and compute what a bare loop does."""

import signal
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from hydra import compose, initialize_config_dir
from pytorch_lightning import Callback

from vitrail.bench import step_baselines
from vitrail.bench.bare_loop import Loop
from vitrail.bench.step_baselines import LIGHTNING, Turns, drive
from vitrail.bench.train_step import Setting
from vitrail.data.batches import Batch
from vitrail.run import train as run_train
from vitrail.startup import configs

TINY = (
    "trainer=cpu", "data=synthetic", "data.image_size=[8,12]", "data.batch_size=4",
    "model.patch_size=2", "model.dim=16", "model.depth=1", "model.heads=2", "backend=eager",
    "logger=none",
)  # fmt: skip
BATCH = Batch(torch.zeros(2, 3, 4, 6), torch.zeros(2, dtype=torch.int64), None)


def composed(*overrides: str):
    with initialize_config_dir(str(configs()), version_base="1.3"):
        return compose("train", [*TINY, *overrides])


class FakeClock:
    """Stands still but for what is said to take time."""

    def __init__(self):
        self.now, self.devices = 0.0, set()

    def __call__(self, device: str) -> float:
        self.devices.add(device)
        return self.now

    def takes(self, seconds: float) -> Callable[[], None]:
        def function() -> None:
            self.now += seconds

        return function


def test_each_takes_its_turn_in_every_round_and_is_charged_for_that_alone():
    clock, calls = FakeClock(), []
    others = {"a": clock.takes(1.0), "b": clock.takes(2.0)}
    noted = {name: lambda n=name, f=f: (calls.append(n), f()) for name, f in others.items()}
    turns = Turns(noted, BATCH, steps=3, device="tpu", rounds=2, clock=clock)
    batches = iter(turns)
    for _ in range(len(turns)):
        next(batches)
        calls.append(LIGHTNING)
        clock.now += 10.0
    round_ = ["a", "b", *[LIGHTNING] * 3]
    assert calls == round_ * 3 + [LIGHTNING], "a round to warm up, and a batch that ends the last"
    assert {name: times.seconds for name, times in turns.times.items()} == {
        "a": (1.0, 1.0),
        "b": (2.0, 2.0),
        LIGHTNING: (30.0, 30.0),
    }
    assert clock.devices == {"tpu"}


@pytest.mark.parametrize(
    "overrides",
    [
        ["precision=32-true"],
        ["precision=bf16-mixed", "trainer.gradient_clip_val=null"],
        ["precision=bf16-true"],
        ["precision=64-true", "optim=muon"],
        [
            "data.resize=native",
            "data.cache=false",
            "data.pad_to=2",
            "classifier.label_smoothing=0.1",
        ],
    ],
    ids=" ".join,
)
def test_lightning_learns_what_the_bare_loop_learns(overrides, tmp_path):
    setting = Setting(composed(*overrides), training=True, total_steps=5)
    ours, theirs = deepcopy(setting.network), deepcopy(setting.network)
    bare = Loop(ours, setting.parts)
    losses = [bare.step().item() for _ in range(5)]
    assert losses[-1] < losses[0]
    turns = Turns({}, setting.parts.batch, steps=2, device="cpu", rounds=1)
    assert len(turns) == 5
    drive(turns, setting.classifier(theirs), setting.config, setting.plan, tmp_path)
    weights = theirs.state_dict()
    for name, weight in ours.state_dict().items():
        assert weight.dtype == weights[name].dtype
        torch.testing.assert_close(weights[name], weight, atol=1e-6, rtol=1e-5, msg=name)


def test_lightnings_steps_are_timed_among_the_others_and_its_folder_holds_a_run(tmp_path):
    setting = Setting(composed("trainer.log_every_n_steps=4"), training=True, total_steps=9)
    calls = []
    turns = Turns(
        {"other": lambda: calls.append("other")},
        setting.parts.batch,
        steps=2,
        device="cpu",
        rounds=3,
    )
    classifier = setting.classifier(deepcopy(setting.network))
    step = classifier.training_step
    classifier.training_step = lambda batch: calls.append(LIGHTNING) or step(batch)
    drive(turns, classifier, setting.config, setting.plan, tmp_path)
    assert calls == ["other", LIGHTNING, LIGHTNING] * 4 + [LIGHTNING]
    assert len(turns.times["other"].seconds) == len(turns.times[LIGHTNING].seconds) == 3
    assert min(turns.times[LIGHTNING].seconds) > max(turns.times["other"].seconds)
    table = (tmp_path / "metrics.csv").read_text().splitlines()
    assert "train/loss" in table[0]
    assert (tmp_path / "receipt.json").is_file()


def test_ctrl_c_between_batches_stops_the_measurement(tmp_path):
    setting = Setting(composed(), training=True, total_steps=9)
    rounds = iter(range(9))

    def other() -> None:
        if next(rounds) == 2:
            signal.raise_signal(signal.SIGINT)

    turns = Turns({"other": other}, setting.parts.batch, steps=1, device="cpu", rounds=3)
    classifier = setting.classifier(deepcopy(setting.network))
    with pytest.raises(KeyboardInterrupt):
        drive(turns, classifier, setting.config, setting.plan, tmp_path)
    assert turns.times == {}


def test_the_trainer_has_every_callback_that_does_something_at_a_step_of_train_py(
    tmp_path, monkeypatch
):
    class Seen(Exception):
        pass

    def stop(*_, callbacks, **__):
        raise Seen({type(callback) for callback in callbacks if at_a_step(callback)})

    monkeypatch.setattr(run_train, "build_trainer", stop)
    monkeypatch.setattr(step_baselines, "build_trainer", stop)
    config = composed("data=digits", "model.patch_size=2")
    with pytest.raises(Seen) as theirs:
        run_train.train(config, tmp_path, overrides=[], choices={})
    setting = Setting(config, training=True, total_steps=1)
    turns = Turns({}, setting.parts.batch, steps=1, device="cpu", rounds=1)
    with pytest.raises(Seen) as ours:
        drive(turns, setting.classifier(setting.network), config, setting.plan, tmp_path)
    assert theirs.value.args == ours.value.args
    assert len(theirs.value.args[0]) > 2


def at_a_step(callback: Callback) -> bool:
    """Whether it overrides a hook that Lightning calls within a step."""
    return any(
        getattr(type(callback), hook) is not getattr(Callback, hook)
        for hook in dir(Callback)
        if "batch" in hook or "backward" in hook or "optimizer" in hook or "zero_grad" in hook
    )
