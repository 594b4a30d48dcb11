"""torch.compile is used where a training is long enough to earn it back."""

import copy

import pytest
import pytorch_lightning as pl
import torch
from hydra import compose, initialize_config_dir
from torch import nn

from vitrail.cli import configs
from vitrail.run import compiling
from vitrail.run.assemble import Plan
from vitrail.run.compiling import CompileTime, Compiling, steps_ahead


class Timed(nn.Module):
    """A network by whose passes a clock moves; compiled, the first one takes `compile_s` more."""

    now = 0.0

    def __init__(self, plain: float, graph: float, compile_s: float):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.drop = nn.Dropout(0.5)
        self.plain, self.graph, self.compile_s = plain, graph, compile_s
        self.compiled = False

    def compile(self) -> None:
        self.compiled = True

    def forward(self, images):
        Timed.now += self.graph if self.compiled else self.plain
        if self.compiled:
            Timed.now += self.compile_s
            self.compile_s = 0.0
        return self.drop(self.norm(images)).flatten(1)


@pytest.fixture
def measured(monkeypatch):
    """What is decided for a network and so many steps on a machine that can compile."""
    monkeypatch.setattr(compiling, "missing_tool", lambda device: None)

    def measured(network: nn.Module, steps: int, **limits: float) -> Compiling:
        images = (torch.randn(2, 3, 4, 4),)
        return Compiling.measured(
            network,
            images,
            precision="32-true",
            steps=steps,
            read=lambda device: Timed.now,
            **limits,
        )

    return measured


def test_a_graph_that_earns_its_time_back_is_chosen(measured):
    found = measured(Timed(plain=1.0, graph=0.75, compile_s=20.0), steps=200)
    assert found.chosen
    assert found.why == (
        "auto: a graph takes 0.75 times the seconds of a step; the 21 s it took are earned in 83 "
        "steps of 200"
    )


def test_a_graph_that_would_earn_its_time_back_later_is_not(measured):
    found = measured(Timed(plain=1.0, graph=0.75, compile_s=20.0), steps=80)
    assert not found.chosen
    assert found.why.endswith("the 21 s it took are earned in 83 steps of 80")


@pytest.mark.parametrize("graph", [1.0, 1.5])
def test_a_graph_that_is_no_faster_is_not_chosen(graph, measured):
    found = measured(Timed(plain=1.0, graph=graph, compile_s=20.0), steps=10**6)
    assert found == Compiling(False, f"auto: a graph takes {graph:.2f} times the seconds of a step")


def test_nothing_is_compiled_to_find_that_a_training_is_short(measured, monkeypatch):
    monkeypatch.setattr(Timed, "compile", lambda self: pytest.fail("compiled"))
    found = measured(Timed(plain=0.5, graph=0.1, compile_s=20.0), steps=20)
    assert found == Compiling(
        False, "auto: 20 steps of 0.50 s are too few to earn a compilation back"
    )


def test_a_training_that_ends_by_the_clock_has_no_more_steps_than_fit(measured, monkeypatch):
    monkeypatch.setattr(Timed, "compile", lambda self: pytest.fail("compiled"))
    found = measured(Timed(plain=0.5, graph=0.1, compile_s=20.0), steps=10**6, seconds=10.0)
    assert found == Compiling(
        False, "auto: 20 steps of 0.50 s are too few to earn a compilation back"
    )


def test_the_end_by_the_clock_is_the_trainers(monkeypatch):
    asked = []
    monkeypatch.setattr(Compiling, "measured", lambda *_, **limits: asked.append(limits["seconds"]))
    for max_time in ("null", "00:00:02:00"):
        with initialize_config_dir(str(configs()), version_base="1.3"):
            words = ["compile=auto", "trainer=cpu", f"trainer.max_time={max_time}"]
            config = compose("train", words)
        plan = Plan.asking(config, training=True)
        plan.data.prepare_data()
        Compiling.settled(config, plan, nn.Identity(), done=0)
    assert asked == [float("inf"), 120.0]


def test_what_cannot_be_compiled_trains_uncompiled_and_says_why(measured):
    class Broken(Timed):
        def forward(self, images):
            if self.compiled:
                raise RuntimeError("no header named so\nand a page of more")
            return super().forward(images)

    found = measured(Broken(plain=1.0, graph=0.1, compile_s=1.0), steps=1000)
    assert found == Compiling(False, "auto: it cannot be compiled here: no header named so")


def test_without_a_compiler_nothing_is_measured(measured, monkeypatch):
    monkeypatch.setattr(compiling, "missing_tool", lambda device: "a C++ compiler")
    found = measured(nn.Identity(), steps=1000)
    assert found == Compiling(False, "auto: this machine lacks a C++ compiler")


def test_measuring_leaves_the_network_and_the_random_numbers_as_they_were(measured):
    network = Timed(plain=1.0, graph=0.5, compile_s=20.0)
    before, drawn = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    assert measured(network, steps=1000).chosen
    assert not network.compiled
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert network.training
    images = torch.get_rng_state()
    torch.set_rng_state(drawn)
    torch.randn(2, 3, 4, 4)  # the fixture's
    assert torch.equal(torch.get_rng_state(), images)


@pytest.mark.parametrize(
    "limits, expected",
    [
        ({"max_epochs": 3}, 300),
        ({"max_epochs": 3, "max_steps": 40}, 40),
        ({"max_epochs": -1, "max_steps": 40, "accumulate_grad_batches": 2}, 80),
        ({"max_epochs": 3, "limit_train_batches": 10}, 30),
        ({"max_epochs": 3, "limit_train_batches": 0.5}, 150),
    ],
)
def test_the_batches_of_a_training_are_counted_as_lightning_does(limits, expected):
    assert steps_ahead(limits, batches=100, done=0) == expected


def test_a_run_that_goes_on_counts_what_is_left():
    assert steps_ahead({"max_epochs": 3}, batches=100, done=250) == 50
    assert steps_ahead({"max_epochs": 3}, batches=100, done=300) == 0


def test_the_time_of_compiling_stands_beside_a_step_that_nobody_profiles(monkeypatch, capsys):
    now = iter([0.0, 10.0, 19.0])  # when each of the first steps begins
    ends = iter([9.5, 18.0, 19.25])
    monkeypatch.setattr(compiling.time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(compiling, "clock", lambda device: next(ends))
    callback, module = CompileTime(), pl.LightningModule()
    for step in range(3):
        callback.on_train_batch_start(None, module, None, step)
        callback.on_train_batch_end(None, module, None, None, step)
    assert capsys.readouterr().out == "compiled: the first step took 9.5 s, the third 0.25 s\n"


@pytest.mark.usefixtures("measured")
def test_deciding_draws_nothing_that_the_training_would_draw():
    with initialize_config_dir(str(configs()), version_base="1.3"):
        config = compose("train", ["compile=auto", "trainer=cpu", "precision=32-true"])
    plan = Plan.asking(config, training=True)
    plan.data.prepare_data()
    network = Timed(plain=0.0, graph=0.0, compile_s=0.0)
    drawn = torch.get_rng_state()
    assert not Compiling.settled(config, plan, network, done=0).chosen
    assert torch.equal(torch.get_rng_state(), drawn)
