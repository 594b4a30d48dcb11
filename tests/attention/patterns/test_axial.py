"""Rows, columns, both at once, and reading order."""

import pytest
import torch

from vitrail.attention import Grid, Mask, MultiHeadAttention2d
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


@pytest.mark.parametrize("axis", ["rows", "cols"])
def test_each_row_or_column_is_attended_to_as_if_it_were_alone(axis):
    torch.manual_seed(0)
    layer = MultiHeadAttention2d(12, 3, pattern=Axial(axis))
    plain = MultiHeadAttention2d(12, 3)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(2, 3, 5, 12)
    out = layer(x.flatten(1, 2), GRID).unflatten(1, (3, 5))
    if axis == "rows":
        alone = torch.stack([plain(x[:, i], Grid(1, 5)) for i in range(3)], dim=1)
    else:
        alone = torch.stack([plain(x[:, :, i], Grid(3, 1)) for i in range(5)], dim=2)
    torch.testing.assert_close(out, alone, atol=1e-6, rtol=0)


def test_another_axis_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="axis must be rows, cols or both, got row"):
        Axial("row")


def test_in_reading_order_the_mask_is_a_lower_triangle_behind_the_prefix():
    visible = GridPattern(Raster(), Grid(3, 5, 1)).visible(torch.device("cpu"))[0, 0]
    assert torch.equal(visible[1:, 1:], torch.ones(15, 15, dtype=torch.bool).tril())


def test_in_reading_order_what_comes_later_changes_nothing_before_it():
    torch.manual_seed(0)
    layer = MultiHeadAttention2d(12, 3, pattern=Raster())
    x = torch.randn(2, 15, 12)
    changed = x.clone()
    changed[:, 8:] = torch.randn(2, 7, 12)  # from row 1, column 3 on
    before, after = layer(x, Grid(3, 5)), layer(changed, Grid(3, 5))
    assert torch.equal(before[:, :8], after[:, :8])
    assert not torch.allclose(before[:, 8:], after[:, 8:], atol=1e-3)
