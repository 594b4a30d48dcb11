"""What is added to tokens: a learned table, resampled as timm's, or MAE's sines and cosines."""

import numpy as np
import pytest
import torch
from timm.layers import resample_abs_pos_embed

from vitrail.attention import Grid
from vitrail.attention.positions.learned import Learned, resample_table
from vitrail.attention.positions.sincos import SinCos, sincos_table


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


def test_prefix_rows_that_differ_in_number_are_refused():
    with pytest.raises(ValueError, match=r"has 1 prefix rows and the model 5; .*class token"):
        resample_table(torch.randn(1, 17, 12), Grid(4, 4, 1), Grid(4, 4, 5))


@pytest.mark.parametrize("rows", [False, True])
def test_token_i_is_told_its_row_and_a_class_token_without_one_nothing(rows):
    grid = Grid(2, 3, 2)
    position = Learned(prefix=rows).for_grid(grid)
    table = position.table(4)
    assert table.shape == (1, 8 if rows else 6, 4)
    told = table if rows else torch.cat([torch.zeros(1, 2, 4), table], dim=1)
    x = torch.randn(2, 8, 4)
    assert torch.equal(position.embed(x, table, grid), x + told)


def test_a_fresh_table_is_small_and_random():
    torch.manual_seed(0)
    table = Learned().for_grid(Grid(14, 14, 1)).table(192)
    assert table.std().item() == pytest.approx(0.02, rel=0.05)
    assert table.mean().item() == pytest.approx(0.0, abs=1e-3)


def mae_table(dim: int, rows: int, cols: int) -> np.ndarray:
    """`get_2d_sincos_pos_embed` of He et al. 2021, token by token in float64."""

    def one_axis(place: int) -> list[float]:
        omega = [1 / 10000 ** (i / (dim / 4)) for i in range(dim // 4)]
        return [np.sin(place * w) for w in omega] + [np.cos(place * w) for w in omega]

    return np.array([one_axis(col) + one_axis(row) for row in range(rows) for col in range(cols)])


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (3, 5), (7, 2), (14, 14)], ids=str)
@pytest.mark.parametrize("dim", [4, 24, 192])
def test_the_table_equals_mae(shape, dim):
    ours = sincos_table(Grid(*shape), dim, 10_000.0, None)
    expected = torch.from_numpy(mae_table(dim, *shape)).float()
    torch.testing.assert_close(ours, expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("prefix", [1, 5])
def test_prefix_tokens_are_told_nothing(prefix):
    table = sincos_table(Grid(3, 5, prefix), 12, 10_000.0, None)
    assert (table[:prefix] == 0).all()
    assert torch.equal(table[prefix:], sincos_table(Grid(3, 5), 12, 10_000.0, None))


def test_the_temperature_sets_the_slowest_wave():
    table = sincos_table(Grid(1, 2), 8, 100.0, None)
    torch.testing.assert_close(table[1, 1], torch.tensor(0.1).sin())


@pytest.mark.parametrize("dim, way_out", [(6, "use 4 or 8"), (21, "use 20 or 24"), (2, "use 4")])
def test_a_width_that_4_does_not_divide_is_refused(dim, way_out):
    with pytest.raises(ValueError, match=f"dim .* got {dim}; {way_out}$"):
        SinCos().embed(torch.randn(1, 15, dim), None, Grid(3, 5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_sines_have_no_weights_and_tokens_keep_their_dtype(dtype):
    assert SinCos().for_grid(Grid(3, 5)).table(12) is None
    x = torch.randn(1, 15, 12).to(dtype)
    assert SinCos().embed(x, None, Grid(3, 5)).dtype == dtype
