"""What a layer costs when its map has four times the tokens: 32 x 32, then 64 x 64.

`pytest -m slow -s tests/attention/patterns/test_cost.py` prints the figures.
"""

from collections.abc import Callable
from itertools import accumulate

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from vitrail.attention import Grid, MultiHeadAttention2d
from vitrail.attention.patterns import Pattern
from vitrail.attention.patterns.axial import Axial
from vitrail.attention.patterns.full import Full
from vitrail.attention.patterns.neighborhood import Neighborhood
from vitrail.attention.patterns.window import Window
from vitrail.attention.selection.stopwatch import interleave

BATCH, DIM, HEADS = 2, 192, 3
SIDES = (32, 64)

each_regrouped = pytest.mark.parametrize(
    "pattern",
    [Window(8), Window(8, shift=4), Axial("rows"), Axial("cols"), Neighborhood(7)],
    ids=str,
)


def step(pattern: Pattern, side: int) -> Callable[[], object]:
    """Forward and backward of one layer on a side x side map."""
    grid = Grid(side, side)
    layer = MultiHeadAttention2d(DIM, HEADS, pattern=pattern, backend="eager")
    x = torch.randn(BATCH, grid.tokens, DIM, requires_grad=True)
    leaves = [x, *layer.parameters()]
    return lambda: torch.autograd.grad(layer(x, grid).sum(), leaves)


def peak_bytes(function: Callable[[], object]) -> int:
    """The most that tensors made by `function` hold at one time: torch's count, no timing in it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    events = [
        each for each in profiler.profiler.kineto_results.events() if each.name() == "[memory]"
    ]
    events.sort(key=lambda each: each.start_ns())
    return max(accumulate(each.nbytes() for each in events))


def growth_of_memory(pattern: Pattern) -> float:
    small, large = (peak_bytes(step(pattern, side)) for side in SIDES)
    print(f"\n{pattern}: {small / 2**20:.1f} MiB, {large / 2**20:.1f} MiB, x{large / small:.2f}")
    return large / small


def growth_of_time(pattern: Pattern) -> float:
    times = interleave({str(s): step(pattern, s) for s in SIDES}, device="cpu", rounds=7)
    # The quickest round: other programs only ever add to one, and more to a long one.
    small, large = (1000 * min(each.seconds) for each in times.values())
    print(f"\n{pattern}: {small:.1f} ms, {large:.1f} ms, x{large / small:.2f}")
    return large / small


@pytest.mark.slow
@each_regrouped
def test_memory_grows_with_the_number_of_tokens(pattern):
    assert growth_of_memory(pattern) <= 4.5


@pytest.mark.slow
@each_regrouped
def test_time_grows_with_the_number_of_tokens(pattern):
    # The tiles of a neighbourhood are exactly four times as many, but overflow the caches first.
    assert growth_of_time(pattern) <= (5.5 if isinstance(pattern, Neighborhood) else 4.5)


@pytest.mark.slow
def test_full_attention_grows_with_its_square():
    assert growth_of_memory(Full()) > 12
    assert growth_of_time(Full()) > 8
