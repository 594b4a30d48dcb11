"""Times of several functions that are compared fairly: in turn, many rounds, medians."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles

import torch


@dataclass(frozen=True)
class Times:
    """Seconds of one function, round by round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def band(self) -> tuple[float, float]:
        """The 10th and the 90th percentile."""
        if len(self.seconds) == 1:
            return self.seconds * 2
        deciles = quantiles(self.seconds, n=10, method="inclusive")
        return deciles[0], deciles[-1]


def clock(device: str) -> float:
    """Seconds, read when everything that was queued on the device is done."""
    if device != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter()


def interleave(
    functions: Mapping[str, Callable[[], object]],
    *,
    device: str,
    rounds: int,
    warm_up: int = 1,
    min_rounds: int = 1,
    seconds: float = float("inf"),
    clock: Callable[[str], float] = clock,
) -> dict[str, Times]:
    """Time each function once a round, A B C A B C …, so that a slow moment meets them all.

    Args:
        functions: what is timed, by name.
        device: the type of device that is waited for.
        rounds, min_rounds: the most and the fewest that are counted.
        warm_up: rounds before the first that is counted.
        seconds: stop with the round in which so many have passed, warm-up included.
        clock: tells seconds on a device.
    """
    found: dict[str, list[float]] = {name: [] for name in functions}
    start = clock(device)
    for number in range(1 - warm_up, rounds + 1):
        for name, function in functions.items():
            before = clock(device)
            function()
            passed = clock(device) - before
            if number > 0:
                found[name].append(passed)
        if number >= min_rounds and clock(device) - start > seconds:
            break
    return {name: Times(tuple(times)) for name, times in found.items()}
