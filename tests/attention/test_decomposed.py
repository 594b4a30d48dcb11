"""Decomposed relative positions: widened q and k compute what the formula says, on every kernel."""

import pytest
import torch
from timm.models.vision_transformer_sam import get_rel_pos

from vitrail.attention import Grid, Mask, MultiHeadAttention2d, attend
from vitrail.attention.patterns import Call, GridPattern
from vitrail.attention.patterns.window import Window
from vitrail.attention.positions.decomposed import (
    Decomposed,
    decomposed_bias,
    resample_axis,
    widened,
)

from .cases import ON_CPU
from .oracle import LARGEST, assert_near, attention, exact_copies, with_gradients

BATCH, HEADS, WIDTH, DIM = 2, 3, 8, 24
GRIDS = (Grid(1, 1), Grid(3, 5), Grid(5, 3, 1), Grid(2, 9, 5))
SCALE = WIDTH**-0.5

each_backend = pytest.mark.parametrize("backend", ON_CPU)
each_grid = pytest.mark.parametrize("grid", GRIDS, ids=str)


def draw(grid: Grid, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """q, k, v and the two tables, all to be learned."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(BATCH, HEADS, grid.tokens, WIDTH)] * 3
    shapes += [(2 * size - 1, WIDTH) for size in (grid.rows, grid.cols)]
    values = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [value.to(dtype).requires_grad_() for value in values]


def exact_attention(leaves: list[torch.Tensor], grid: Grid, **given) -> torch.Tensor:
    """The slow twin: the bias laid out, in the leaves' own precision."""
    q, k, v, by_row, by_col = leaves
    bias = decomposed_bias(q, by_row, by_col, grid, grid.coordinates())
    return attention(q, k, v, bias=bias, **given)


@each_grid
def test_the_formula_is_segment_anythings(grid):
    q, _, _, by_row, by_col = draw(grid)
    bias = decomposed_bias(q, by_row, by_col, grid, grid.coordinates())
    # Their way to say it: q as a map, a product an axis, summed over the pair.
    image = q[:, :, grid.prefix :].unflatten(-2, (grid.rows, grid.cols))
    by_rows = torch.einsum("bhrcd,rsd->bhrcs", image, get_rel_pos(grid.rows, grid.rows, by_row))
    by_cols = torch.einsum("bhrcd,ctd->bhrct", image, get_rel_pos(grid.cols, grid.cols, by_col))
    expected = (by_rows[..., :, None] + by_cols[..., None, :]).flatten(-2).flatten(2, 3)
    on_map = bias[:, :, grid.prefix :, grid.prefix :]
    torch.testing.assert_close(on_map, expected, atol=1e-5, rtol=0)
    assert bias.count_nonzero() == on_map.count_nonzero(), "prefix tokens get 0"


@each_grid
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("scale", [SCALE, "learned"], ids=str)
def test_widened_scores_are_the_scores_with_the_bias(grid, dtype, scale):
    q, k, _, by_row, by_col = draw(grid, dtype)
    places = grid.coordinates()
    if scale == "learned":
        scale = torch.tensor([0.1, 1.0, 7.0], dtype=dtype)[:, None, None]
    wide_q, wide_k = widened(q, k, by_row, by_col, grid, places, scale)
    scores = (wide_q * scale) @ wide_k.transpose(-2, -1)
    expected = (q * scale) @ k.transpose(-2, -1)
    expected = expected + decomposed_bias(q, by_row, by_col, grid, places)
    torch.testing.assert_close(scores, expected, atol=100 * torch.finfo(dtype).eps, rtol=1e-5)


@each_backend
@each_grid
@pytest.mark.parametrize("padded", [False, True])
def test_a_kernel_without_a_bias_computes_the_formula_and_its_gradients(backend, grid, padded):
    valid = torch.ones(BATCH, grid.tokens, dtype=torch.bool)
    valid[0, grid.tokens // 2 + 1 :] = False
    mask = Mask(valid=valid if padded else None)
    for dtype in (torch.float64, torch.float32):
        leaves = draw(grid, dtype)
        q, k, v, by_row, by_col = leaves
        wide = widened(q, k, by_row, by_col, grid, grid.coordinates(), SCALE)
        out = attend(*wide, v, mask=mask, scale=SCALE, backend=backend)
        assert out.shape == v.shape
        slow = exact_copies(leaves)
        expected = exact_attention(slow, grid, visible=mask.visible(q.device))
        assert_near("output", out, expected)
        both = with_gradients(out, leaves), with_gradients(expected, slow)
        for number, (actual, want) in enumerate(zip(*both, strict=True)):
            gap = (actual.double() - want).norm() / want.norm().clamp(min=1.0)
            assert gap <= LARGEST[dtype], number


@each_backend
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves_are_as_near_as_with_a_bias_that_is_rounded_to_them(backend, dtype):
    grid = Grid(7, 9, 1)
    q, k, v, by_row, by_col = leaves = draw(grid, dtype)
    with torch.no_grad():
        exact = exact_copies(leaves)
        expected = exact_attention(exact, grid)
        bias = decomposed_bias(exact[0], exact[3], exact[4], grid, grid.coordinates())
        wide = widened(q, k, by_row, by_col, grid, grid.coordinates(), SCALE)
        out = attend(*wide, v, scale=SCALE, backend=backend)
        rounded = attend(q, k, v, bias=bias.to(dtype), scale=SCALE, backend=backend)
    ours, theirs = ((x.double() - expected).norm() / expected.norm() for x in (out, rounded))
    assert ours <= 1.2 * theirs


@each_grid
def test_the_width_is_one_that_8_divides(grid):
    q, k, _, by_row, by_col = draw(grid)
    for wide in widened(q, k, by_row, by_col, grid, grid.coordinates(), SCALE):
        least = WIDTH + grid.rows + grid.cols
        assert least <= wide.shape[-1] < least + 8
        assert wide.shape[-1] % 8 == 0


def test_in_windows_places_are_those_within_the_window():
    torch.manual_seed(0)
    grid, pattern = Grid(5, 7, 1), Window((3, 4), shift=(1, 2))
    tile = pattern.tile(grid)
    q, k, v = torch.randn(3, BATCH, HEADS, grid.tokens, WIDTH)
    by_row, by_col = torch.randn(2 * tile.rows - 1, WIDTH), torch.randn(2 * tile.cols - 1, WIDTH)
    places = pattern.places(grid, q.device)
    whole = Call(*widened(q, k, by_row, by_col, tile, places, SCALE), v, Mask(), None)
    outs = [
        attend(call.q, call.k, call.v, mask=call.mask, scale=SCALE, backend="reference")
        for call in pattern.split(whole, None, grid)
    ]
    bias = decomposed_bias(q, by_row, by_col, tile, places)
    visible = GridPattern(pattern, grid).visible(q.device)
    expected = attention(q, k, v, visible=visible, bias=bias)
    assert_near("output", pattern.join(outs, grid), expected)


@pytest.mark.parametrize("size, new", [(5, 5), (5, 8), (8, 3), (4, 1), (1, 3)])
def test_a_table_for_another_grid_is_segment_anythings_linear_one(size, new):
    torch.manual_seed(0)
    table = torch.randn(2 * size - 1, WIDTH)
    place = torch.arange(new)
    ours = resample_axis(table, new)[place[:, None] - place[None, :] + new - 1]
    torch.testing.assert_close(ours, get_rel_pos(new, new, table))


def test_the_layer_begins_as_one_without_positions():
    torch.manual_seed(0)
    grid = Grid(3, 5, 1)
    layer = MultiHeadAttention2d(DIM, HEADS, position=Decomposed(grid=grid))
    plain = MultiHeadAttention2d(DIM, HEADS)
    plain.load_state_dict(layer.state_dict(), strict=False)
    x = torch.randn(BATCH, grid.tokens, DIM)
    torch.testing.assert_close(layer(x, grid), plain(x, grid), atol=1e-6, rtol=0)


@each_backend
@pytest.mark.parametrize("scale", [None, 0.7, "learned"])
def test_the_layer_adds_the_formula_to_its_scores_at_any_scale(backend, scale):
    torch.manual_seed(0)
    grid = Grid(3, 5, 1)
    layer = MultiHeadAttention2d(
        DIM, HEADS, position=Decomposed(grid=grid), backend=backend, scale=scale
    )
    for table in layer.position.parameters():
        torch.nn.init.normal_(table)
    plain = MultiHeadAttention2d(DIM, HEADS, backend="reference", scale=scale)
    plain.load_state_dict(layer.state_dict(), strict=False)
    x = torch.randn(BATCH, grid.tokens, DIM)
    q = layer.qkv(x)[..., :DIM].unflatten(-1, (HEADS, -1)).transpose(1, 2)
    tables = layer.position.rel_pos_h, layer.position.rel_pos_w
    bias = decomposed_bias(q, *tables, grid, grid.coordinates())
    torch.testing.assert_close(layer(x, grid), plain(x, grid, bias=bias), atol=1e-5, rtol=0)
