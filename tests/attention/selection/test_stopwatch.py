"""Functions are timed in turn, warm, and until what they queued on a device is done."""

from collections.abc import Callable

import pytest
import torch

from vitrail.attention.selection import stopwatch
from vitrail.attention.selection.stopwatch import Times, clock, interleave


class FakeDevice:
    """A clock that only work moves; work is queued at no time, and done when the clock is read."""

    def __init__(self):
        self.now, self.queued, self.calls = 0.0, 0.0, ""

    def work(self, name: str, *seconds: float) -> Callable[[], None]:
        """A function that takes so long in each of its calls, and the last of it in all others."""
        costs = [*seconds]

        def launch():
            self.calls += name
            self.queued += costs.pop(0) if len(costs) > 1 else costs[0]

        return launch

    def read(self, device: str) -> float:
        assert device == "fake"
        self.now, self.queued = self.now + self.queued, 0.0
        return self.now


def timed(device: FakeDevice, functions, **knobs) -> dict[str, Times]:
    return interleave(functions, device="fake", clock=device.read, **knobs)


def test_functions_take_turns_and_what_is_queued_is_counted_to_the_one_who_queued_it():
    device = FakeDevice()
    times = timed(device, {"a": device.work("a", 2.0), "b": device.work("b", 5.0)}, rounds=4)
    assert times == {"a": Times((2.0,) * 4), "b": Times((5.0,) * 4)}
    assert device.calls == "ab" * (1 + 4)


@pytest.mark.parametrize("warm_up", [0, 1, 2])
def test_rounds_of_warming_up_are_called_and_not_counted(warm_up):
    device = FakeDevice()
    work = device.work("a", 100.0, 50.0, 1.0)
    times = timed(device, {"a": work}, rounds=3, warm_up=warm_up)
    assert times["a"].seconds == (100.0, 50.0, 1.0, 1.0, 1.0)[warm_up : warm_up + 3]
    assert len(device.calls) == warm_up + 3


@pytest.mark.parametrize(
    "seconds, least, rounds", [(0.0, 1, 1), (0.0, 3, 3), (10.0, 1, 5), (10.0, 9, 8), (99.0, 1, 8)]
)
def test_it_ends_with_the_round_in_which_the_time_is_up_or_the_least_are_done(
    seconds, least, rounds
):
    device = FakeDevice()
    work = {"a": device.work("a", 2.0)}  # 10 s have passed in the fifth round after the warm-up
    times = timed(device, work, rounds=8, seconds=seconds, min_rounds=least)
    assert len(times["a"].seconds) == rounds


def test_the_clock_waits_for_a_device_and_asks_none_on_a_cpu(monkeypatch):
    told = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: told.append("waited"))
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: told.append("read") or 1.0)
    assert clock("cpu") == 1.0
    assert told == ["read"]
    clock("cuda")
    assert told == ["read", "waited", "read"]


def test_the_band_holds_the_middle_four_fifths_of_the_rounds():
    times = Times(tuple(float(second) for second in range(1, 12)))
    assert (times.median, times.band) == (6.0, (2.0, 10.0))
    assert Times((7.0,)).band == (7.0, 7.0)
