"""Sines and cosines of row and column, equal to MAE's formula."""

import numpy as np
import pytest
import torch

from vitrail.attention import Grid
from vitrail.attention.positions.sincos import SinCos, sincos_table


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


def test_it_has_no_weights():
    assert SinCos().for_grid(Grid(3, 5)).table(12) is None


@pytest.mark.parametrize("dim, way_out", [(6, "use 4 or 8"), (21, "use 20 or 24"), (2, "use 4")])
def test_a_width_that_4_does_not_divide_is_refused(dim, way_out):
    with pytest.raises(ValueError, match=f"dim .* got {dim}; {way_out}$"):
        SinCos().embed(torch.randn(1, 15, dim), None, Grid(3, 5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_tokens_keep_their_dtype(dtype):
    x = torch.randn(1, 15, 12).to(dtype)
    assert SinCos().embed(x, None, Grid(3, 5)).dtype == dtype
