"""Neighbourhoods against their formula in plain Python, and against tiles of any number."""

import pytest
import torch

from vitrail.attention import Grid, Mask
from vitrail.attention.patterns import Call, GridPattern
from vitrail.attention.patterns.neighborhood import Neighborhood

from .examples import check_regrouped

# rows x cols, kernel, dilation: odd and even kernels, dilations that do and do not divide the map,
# kernels as long as the map and longer, and axes that differ in all of that.
CASES = [
    ((5, 9), (3, 3), (1, 1)),
    ((5, 9), (2, 2), (1, 1)),
    ((9, 5), (4, 2), (1, 1)),
    ((7, 11), (3, 4), (2, 2)),
    ((8, 13), (2, 5), (3, 2)),
    ((6, 4), (3, 4), (2, 1)),
    ((3, 14), (7, 3), (1, 4)),
    ((4, 5), (1, 1), (2, 3)),
    ((1, 6), (3, 3), (2, 2)),
    ((11, 21), (3, 5), (1, 2)),
]

CPU = torch.device("cpu")

each_case = pytest.mark.parametrize("shape, kernel, dilation", CASES)


def neighbours(i: int, length: int, kernel: int, dilation: int) -> set[int]:
    """Those that token i of an axis sees: a run of `kernel` tokens of its own dilation group."""
    group = list(range(i % dilation, length, dilation))
    start = min(max(group.index(i) - kernel // 2, 0), max(len(group) - kernel, 0))
    return set(group[start : start + kernel])


@each_case
def test_who_is_seen_is_what_the_formula_says(shape, kernel, dilation):
    rows, cols = shape
    visible = GridPattern(Neighborhood(kernel, dilation), Grid(rows, cols)).visible(CPU)
    visible = visible[0, 0].unflatten(0, shape).unflatten(2, shape)  # (rows, cols, rows, cols)
    for row in range(rows):
        for col in range(cols):
            by_row = neighbours(row, rows, kernel[0], dilation[0])
            by_col = neighbours(col, cols, kernel[1], dilation[1])
            expected = {(r, c) for r in by_row for c in by_col}
            assert {tuple(place) for place in visible[row, col].nonzero().tolist()} == expected


def test_an_edge_pushes_the_neighbourhood_inwards_and_an_even_kernel_looks_further_back():
    visible = GridPattern(Neighborhood((1, 4)), Grid(1, 7)).visible(CPU)[0, 0]
    starts = [row.nonzero()[0].item() for row in visible]
    assert starts == [0, 0, 0, 1, 2, 3, 3]
    assert (visible.sum(1) == 4).all()


@each_case
@pytest.mark.parametrize("prefix", [0, 2])
def test_tiles_equal_one_call_with_a_mask(shape, kernel, dilation, prefix):
    check_regrouped(Neighborhood(kernel, dilation), Grid(*shape, prefix))


def test_a_large_map_is_computed_in_tiles_and_a_small_one_with_the_rule_itself():
    def requests(grid):
        q = torch.randn(2, 3, grid.tokens, 4)
        return Neighborhood(5).split(Call(q, q, q, Mask(), None), None, grid)

    small, large = requests(Grid(8, 12)), requests(Grid(16, 24))
    assert small[0].mask.kinds == {"pattern"}
    assert large[0].mask.kinds == {"mask"}
    assert large[0].q.shape[:3] == (2 * 2 * 3, 3, 8 * 8)
    assert large[0].k.shape[2] == 12 * 12


@pytest.mark.parametrize(
    "options, message",
    [
        ({"kernel": 0}, "kernel=0 must be whole numbers from 1 on"),
        ({"dilation": (1, 0)}, r"dilation=\(1, 0\) must be whole numbers from 1 on"),
        ({"kernel": "3"}, "kernel=3 must be"),
    ],
)
def test_a_neighbourhood_that_cannot_be_is_refused_in_one_line(options, message):
    with pytest.raises(ValueError, match=message):
        Neighborhood(**options)
