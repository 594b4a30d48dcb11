"""Rows, columns, both at once, and reading order."""

import pytest
import torch

from vitrail.attention import Grid, Mask
from vitrail.attention.patterns import Call, GridPattern
from vitrail.attention.patterns.axial import Axial
from vitrail.attention.patterns.raster import Raster

GRID = Grid(3, 5)


def seen_from(axis: str, row: int, col: int) -> set[tuple[int, int]]:
    visible = GridPattern(Axial(axis), GRID).visible(torch.device("cpu"))[0, 0]
    return {divmod(token, 5) for token in visible[row * 5 + col].nonzero().flatten().tolist()}


def test_a_token_sees_its_row_or_its_column_or_both():
    row, col = {(1, c) for c in range(5)}, {(r, 3) for r in range(3)}
    assert seen_from("rows", 1, 3) == row
    assert seen_from("cols", 1, 3) == col
    assert seen_from("both", 1, 3) == row | col


@pytest.mark.parametrize("axis, groups, tokens", [("rows", 3, 5), ("cols", 5, 3)])
def test_a_row_or_a_column_is_a_sample_of_a_call_without_a_mask(axis, groups, tokens):
    q = torch.randn(2, 4, GRID.tokens, 8)
    (call,) = Axial(axis).split(Call(q, q, q, Mask(), None), None, GRID)
    assert call.q.shape == call.k.shape == (2 * groups, 4, tokens, 8)
    assert call.mask.kinds == set()


def test_another_axis_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="axis must be rows, cols or both, got row"):
        Axial("row")


def test_in_reading_order_the_mask_is_a_lower_triangle_behind_the_prefix():
    visible = GridPattern(Raster(), Grid(3, 5, 1)).visible(torch.device("cpu"))[0, 0]
    assert torch.equal(visible[1:, 1:], torch.ones(15, 15, dtype=torch.bool).tril())
