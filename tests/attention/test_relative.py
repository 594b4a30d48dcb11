"""The relative bias: Swin's and BEiT's table, told apart by rows and columns, for any grid."""

import pytest
import torch
from timm.layers import RelPosBias, resize_rel_pos_bias_table_levit
from timm.models.beit import Attention as BeitAttention
from torchvision.models.swin_transformer import ShiftedWindowAttention

from vitrail.attention import Grid, MultiHeadAttention2d
from vitrail.attention.positions.relative import (
    RelativeBias,
    relative_index,
    resample_relative,
    table_length,
)

from .cases import ON_CPU

DIM, HEADS = 24, 3
LEARNS_BIAS = [name for name in ON_CPU if name != "sdpa_flash"]

each_backend = pytest.mark.parametrize("backend", LEARNS_BIAS)


def table_for(grid: Grid) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(table_length(grid), HEADS)


def bias_of(table: torch.Tensor, built: Grid, grid: Grid) -> torch.Tensor:
    layer = RelativeBias(grid=built).layer(HEADS, 8)
    layer.relative_position_bias_table.data = table
    return layer.bias(grid)


@pytest.mark.parametrize("shape", [(7, 7), (3, 5), (5, 3), (1, 4), (1, 1)], ids=str)
def test_the_bias_of_a_window_equals_torchvision_swins(shape):
    theirs = ShiftedWindowAttention(DIM, [*shape], [0, 0], HEADS)
    grid = Grid(*shape)
    theirs.relative_position_bias_table.data = table = table_for(grid)
    assert torch.equal(bias_of(table, grid, grid), theirs.get_relative_position_bias())


@pytest.mark.parametrize("grid", [Grid(3, 5, 1), Grid(4, 4, 1), Grid(5, 2)], ids=str)
def test_the_bias_with_a_class_token_equals_timms(grid):
    theirs = RelPosBias((grid.rows, grid.cols), HEADS, prefix_tokens=grid.prefix)
    theirs.relative_position_bias_table.data = table = table_for(grid)
    torch.testing.assert_close(bias_of(table, grid, grid), theirs.get_bias(), atol=0, rtol=0)


@each_backend
def test_the_layer_equals_beits_attention_forward_and_gradients(backend):
    torch.manual_seed(0)
    grid = Grid(3, 5, 1)
    theirs = BeitAttention(DIM, HEADS, qkv_bias=False, window_size=(grid.rows, grid.cols))
    ours = MultiHeadAttention2d(
        DIM, HEADS, position=RelativeBias(grid=grid), backend=backend, qkv_bias=False
    )
    table = "relative_position_bias_table"
    theirs.relative_position_bias_table.data = table_for(grid)
    weights = theirs.state_dict()
    ours.load_state_dict({f"position.{table}" if k == table else k: v for k, v in weights.items()})
    x = torch.randn(2, grid.tokens, DIM)
    out, expected = ours(x, grid), theirs(x)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=0)
    grads = [
        torch.autograd.grad(y.square().sum(), leaf)
        for y, leaf in (
            (out, ours.position.get_parameter(table)),
            (expected, theirs.get_parameter(table)),
        )
    ]
    torch.testing.assert_close(*grads, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("prefix", [1, 5])
def test_all_prefix_tokens_share_three_entries(prefix):
    grid = Grid(2, 3, prefix)
    index = relative_index(grid)
    area = 3 * 5
    assert table_length(grid) == area + 3
    assert (index[:prefix, prefix:] == area).all()
    assert (index[prefix:, :prefix] == area + 1).all()
    assert (index[:prefix, :prefix] == area + 2).all()
    assert torch.equal(index[prefix:, prefix:], relative_index(Grid(2, 3)))


@pytest.mark.parametrize("new", [Grid(7, 7), Grid(3, 3), Grid(12, 12)], ids=str)
def test_a_table_for_another_square_is_timms_bicubic_one(new):
    old = Grid(5, 5)
    table = table_for(old)
    expected = resize_rel_pos_bias_table_levit(table, (table_length(new), HEADS))
    torch.testing.assert_close(resample_relative(table, old, new), expected)


def test_a_table_is_resampled_by_rows_and_columns_apart():
    old, new = Grid(3, 5, 2), Grid(6, 4, 1)
    ramp = torch.arange(9.0).expand(5, 9).reshape(-1, 1)  # grows with the difference of columns
    table = torch.cat(
        [ramp.expand(-1, HEADS), torch.tensor([[7.0], [8.0], [9.0]]).expand(-1, HEADS)]
    )
    resampled = resample_relative(table, old, new)
    image = resampled[:-3].unflatten(0, (11, 7))
    assert torch.allclose(image, image[:1].expand_as(image), atol=1e-5), "rows stay alike"
    assert (image[0, 1:] > image[0, :-1]).all(), "columns still grow"
    torch.testing.assert_close(image[0, 3], torch.full((HEADS,), 4.0))  # no difference, as before
    assert torch.equal(resampled[-3:], table[-3:]), "what prefix tokens take is not touched"


def test_a_table_serves_fewer_kinds_of_tokens_and_not_more():
    table = table_for(Grid(3, 5, 1))
    without = bias_of(table, Grid(3, 5, 1), Grid(3, 5))
    assert torch.equal(without, bias_of(table, Grid(3, 5, 1), Grid(3, 5, 1))[..., 1:, 1:])
    with pytest.raises(ValueError, match=r"with 2; build it .*Bias\(grid=Grid\(3, 5, 2\)\)$"):
        bias_of(table_for(Grid(3, 5)), Grid(3, 5), Grid(3, 5, 2))


def test_a_bias_that_is_given_adds_to_that_of_the_position():
    torch.manual_seed(0)
    grid = Grid(3, 5, 1)
    layer = MultiHeadAttention2d(DIM, HEADS, position=RelativeBias(grid=grid))
    plain = MultiHeadAttention2d(DIM, HEADS)
    plain.load_state_dict(layer.state_dict(), strict=False)
    x, given = torch.randn(2, grid.tokens, DIM), torch.randn(2, 1, grid.tokens, grid.tokens)
    expected = plain(x, grid, bias=given + layer.position.bias(grid).detach())
    torch.testing.assert_close(layer(x, grid, bias=given), expected, atol=1e-6, rtol=0)
