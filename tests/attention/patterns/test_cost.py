"""What a layer costs when its map has four times the tokens: 32 x 32, then 64 x 64.

`pytest -m slow -s tests/attention/patterns/test_cost.py` prints the figures.
"""

from collections.abc import Callable
from itertools import accumulate

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from vitrail.attention import Grid, MultiHeadAttention2d
from vitrail.attention.patterns.axial import Axial
from vitrail.attention.patterns.full import Full
from vitrail.attention.patterns.neighborhood import Neighborhood
from vitrail.attention.patterns.window import Window
from vitrail.attention.selection.stopwatch import interleave

REGROUPED = [Window(8), Window(8, shift=4), Axial("rows"), Axial("cols"), Neighborhood(7)]


def peak_bytes(function: Callable[[], object]) -> int:
    """The most that tensors made by `function` hold at one time: torch's count, no timing in it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(accumulate(event.nbytes() for event in events))


def operations(function: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [*REGROUPED, Full()], ids=str)
def test_memory_and_operations_grow_with_the_tokens_or_for_full_attention_their_square(pattern):
    steps = {}
    for side in (32, 64):
        grid = Grid(side, side)
        layer = MultiHeadAttention2d(192, 3, pattern=pattern, backend="eager")
        x = torch.randn(2, grid.tokens, 192, requires_grad=True)
        steps[side] = lambda layer=layer, x=x, grid=grid: layer(x, grid).sum().backward()
    # Times are printed alone; of each the quickest, to which other programs added least.
    times = interleave(steps, device="cpu", rounds=7).values()
    figures = {
        "ms": [1000 * min(time.seconds) for time in times],
        "MiB": [peak_bytes(step) / 2**20 for step in steps.values()],
        "GFLOP": [operations(step) / 1e9 for step in steps.values()],
    }
    growth = {unit: large / small for unit, (small, large) in figures.items()}
    for unit, (small, large) in figures.items():
        print(f"{pattern}: {small:.1f} {unit}, {large:.1f} {unit}, x{growth[unit]:.2f}")
    if pattern == Full():
        assert growth["MiB"] > 12
        assert growth["GFLOP"] > 8
    else:
        assert growth["MiB"] <= 4.5
        assert growth["GFLOP"] <= 4.5
