"""A learned table follows the grid as a map does, equal to timm's resampling."""

import pytest
import torch
from timm.layers import resample_abs_pos_embed

from vitrail.attention import Grid
from vitrail.attention.positions.learned import Learned, resample_table


@pytest.mark.parametrize("prefix", [0, 1, 5])
@pytest.mark.parametrize(
    "old, new",
    [((4, 4), (7, 7)), ((7, 7), (4, 4)), ((3, 5), (6, 4)), ((5, 3), (3, 5)), ((4, 4), (2, 8))],
    ids=str,
)
def test_resampling_equals_timms(old, new, prefix):
    torch.manual_seed(0)
    table = torch.randn(1, prefix + old[0] * old[1], 12)
    ours = resample_table(table, Grid(*old, prefix), Grid(*new, prefix))
    theirs = resample_abs_pos_embed(table, new, old, num_prefix_tokens=prefix)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    assert torch.equal(ours[:, :prefix], table[:, :prefix])


def test_the_same_grid_gives_the_very_same_table():
    table = torch.randn(1, 16, 12)
    assert resample_table(table, Grid(3, 5, 1), Grid(3, 5, 1)) is table


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_table_of_halves_is_resampled_in_fp32_and_given_back_in_halves(dtype):
    table = torch.randn(1, 16, 12).to(dtype)
    out = resample_table(table, Grid(4, 4), Grid(3, 7))
    assert out.dtype == dtype
    assert torch.equal(out, resample_table(table.float(), Grid(4, 4), Grid(3, 7)).to(dtype))


def test_prefix_rows_that_differ_in_number_are_refused():
    with pytest.raises(ValueError, match=r"has 1 prefix rows and the model 5; .*class token"):
        resample_table(torch.randn(1, 17, 12), Grid(4, 4, 1), Grid(4, 4, 5))


def test_token_i_is_told_row_i_of_the_table():
    grid = Grid(2, 3, 1)
    position = Learned().for_grid(grid)
    table = position.table(4)
    x = torch.randn(2, 7, 4)
    assert torch.equal(position.embed(x, table, grid), x + table)


def test_without_prefix_rows_the_class_token_is_told_nothing():
    grid = Grid(2, 3, 2)
    position = Learned(prefix=False).for_grid(grid)
    table = position.table(4)
    assert table.shape == (1, 6, 4)
    x = torch.randn(2, 8, 4)
    out = position.embed(x, table, grid)
    assert torch.equal(out[:, :2], x[:, :2])
    assert torch.equal(out[:, 2:], x[:, 2:] + table)


@pytest.mark.parametrize("prefix", [False, True])
def test_a_resampled_table_still_trains(prefix):
    built, used = Grid(4, 4, 1), Grid(3, 5, 1)
    position = Learned(prefix=prefix).for_grid(built)
    table = position.table(4)
    position.embed(torch.randn(2, used.tokens, 4), table, used).square().sum().backward()
    assert (table.grad.abs().sum(-1) > 0).all()


def test_a_fresh_table_is_small_and_random():
    torch.manual_seed(0)
    table = Learned().for_grid(Grid(14, 14, 1)).table(192)
    assert table.std().item() == pytest.approx(0.02, rel=0.05)
    assert table.mean().item() == pytest.approx(0.0, abs=1e-3)
