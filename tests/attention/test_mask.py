"""Masks and biases: one polarity, combined by AND, refused when malformed; padding is absent."""

import pytest
import torch

from vitrail.attention import Grid, Mask, MultiHeadAttention2d, SelfAttention2d, attend

from .cases import ON_CPU
from .oracle import assert_near, attention, with_gradients

DIM, HEADS = 12, 3
GRID = Grid(3, 5, 1)
CPU = torch.device("cpu")
INTEGERS = (torch.uint8, torch.int64)
FLOATS = (torch.float32, torch.float16, torch.bfloat16)

each_backend = pytest.mark.parametrize("backend", ON_CPU)


def build(backend: str, heads: int = HEADS, **options) -> MultiHeadAttention2d:
    torch.manual_seed(0)
    return MultiHeadAttention2d(DIM, heads, backend=backend, **options)


@each_backend
def test_true_means_may_be_seen(backend):
    layer = build(backend)
    x = torch.randn(2, 6, DIM)
    out = layer(x, Grid(2, 3), mask=torch.eye(6, dtype=torch.bool))
    values = layer.qkv(x).chunk(3, dim=-1)[2]
    torch.testing.assert_close(out, layer.proj(values), atol=1e-6, rtol=0)


@each_backend
def test_rows_are_queries_and_columns_are_keys(backend):
    layer = build(backend)
    x = torch.randn(1, 6, DIM)
    earlier = torch.ones(6, 6, dtype=torch.bool).tril()
    out = layer(x, Grid(2, 3), mask=earlier)
    first = layer(x[:, :3], Grid(1, 3), mask=earlier[:3, :3])
    torch.testing.assert_close(out[:, :3], first, atol=1e-6, rtol=0)


@each_backend
def test_a_mask_and_padding_combine_by_and(backend):
    layer = build(backend)
    grid = Grid(3, 5, 1)
    x = torch.randn(2, grid.tokens, DIM)
    valid = torch.rand(2, 3, 5) > 0.4
    mask = torch.rand(2, HEADS, grid.tokens, grid.tokens) > 0.4
    keys = torch.cat([torch.ones(2, 1, dtype=torch.bool), valid.flatten(1)], dim=1)
    x = x.masked_fill(~keys[..., None], 0.0)
    out = layer(x, grid, valid=valid, mask=mask)
    expected = layer(x, grid, mask=mask & keys[:, None, None, :])
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=0)
    assert not torch.allclose(out, layer(x, grid, mask=mask), atol=1e-3)
    assert not torch.allclose(out, layer(x, grid, valid=valid), atol=1e-3)


@each_backend
def test_a_bias_of_minus_infinity_hides_as_a_mask_does(backend):
    layer = build(backend)
    x = torch.randn(2, 6, DIM)
    mask = torch.rand(2, 1, 6, 6) > 0.4
    mask[0, 0, 2] = False
    bias = torch.zeros(2, 1, 6, 6).masked_fill(~mask, float("-inf"))
    hidden = layer(x, Grid(2, 3), mask=mask)
    torch.testing.assert_close(layer(x, Grid(2, 3), bias=bias), hidden, atol=1e-6, rtol=0)


@each_backend
@pytest.mark.parametrize("axes", [(), (1, 1), (4, 1), (1, 4), (4, 4)], ids=str)
def test_a_mask_means_the_same_where_batch_heads_and_tokens_are_equally_many(backend, axes):
    # B == h == N == 4: every axis could be taken for any other.
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 4, 4, 4, 8)
    layer = build(backend, heads=4)
    x = torch.randn(4, 4, DIM)
    mask = torch.rand(*axes, 4, 4) > 0.4
    full = mask.expand(4, 4, 4, 4)
    out = layer(x, Grid(2, 2), mask=mask)
    for i in range(4):
        alone = layer(x[i : i + 1], Grid(2, 2), mask=full[i : i + 1])
        torch.testing.assert_close(out[i : i + 1], alone, atol=1e-6, rtol=0)
    allowed = mask if mask.ndim == 4 else mask[None, None]
    out = attend(q, k, v, mask=Mask(allowed=allowed), backend=backend)
    assert_near("output", out, attention(q, k, v, visible=full))


@pytest.mark.parametrize("name", ["mask", "bias"])
@pytest.mark.parametrize(
    "batch, shape",
    [(3, shape) for shape in ((3, 5, 5), (5, 5, 5), (1, 5, 5), (3, 2, 5, 5), (2, 3, 5, 5))]
    + [(3, (4, 5)), (3, (3, 3, 5, 4)), (3, (5,)), (5, (5, 5, 5))],
)
def test_another_shape_is_refused_with_the_shapes_that_fit(name, batch, shape):
    # With as many samples as heads or tokens, (B, N, N) is nobody's mask.
    kind = torch.bool if name == "mask" else torch.float32
    fits = rf"\(5, 5\) for all, or \(1\|{batch}, 1\|3, 5, 5\) with the batch and head axes spelled"
    with pytest.raises(ValueError, match=rf"{name} has shape .*; use {fits} out"):
        build("reference")(
            torch.randn(batch, 5, DIM), Grid(1, 5), **{name: torch.ones(shape, dtype=kind)}
        )


@pytest.mark.parametrize(
    "name, dtype, message",
    [("mask", dtype, r"got torch\.\w+; .*\.bool\(\).*bias=") for dtype in (*INTEGERS, *FLOATS)]
    + [("bias", dtype, r"got torch\.\w+; .*goes into mask=") for dtype in (torch.bool, *INTEGERS)],
)
def test_a_mask_made_of_numbers_is_never_added_and_a_bias_of_none_refused(name, dtype, message):
    with pytest.raises(ValueError, match=f"{name} must be .* {message}"):
        build("sdpa")(torch.randn(2, 6, DIM), Grid(2, 3), **{name: torch.ones(6, 6, dtype=dtype)})


@pytest.mark.parametrize("part, shape", [("allowed", (1, 1, 4, 4)), ("valid", (2, 4))])
@pytest.mark.parametrize("dtype", [*INTEGERS, torch.float32])
def test_the_mask_parts_themselves_take_bool_of_their_own_number_of_axes_alone(part, shape, dtype):
    message = rf"Mask\({part}=\) must be torch\.bool .* got torch\.\w+"
    with pytest.raises(ValueError, match=message):
        Mask(**{part: torch.ones(shape, dtype=dtype)})
    with pytest.raises(ValueError, match=rf"{len(shape)} axes.* shape \(2, 4, 4\)"):
        Mask(**{part: torch.ones(2, 4, 4, dtype=torch.bool)})


@pytest.mark.parametrize(
    "bias", [torch.ones(2, 4, 4), torch.ones(4, 4), torch.ones(1, 1, 4, 4, dtype=torch.bool)]
)
def test_the_formula_itself_takes_a_float_bias_with_four_axes_alone(bias):
    q = torch.randn(2, 2, 4, 8)
    with pytest.raises(ValueError, match=r"bias= (has shape|must be a float tensor)"):
        attend(q, q, q, bias=bias)


def test_a_mask_stays_in_its_parts_and_knows_its_kind():
    valid = torch.ones(2, 4, dtype=torch.bool)
    allowed = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    assert Mask().kinds == frozenset()
    assert Mask(valid=valid).kinds == {"padding"}
    assert Mask(allowed=allowed).kinds == {"mask"}
    assert Mask(valid=valid, allowed=allowed).kinds == {"padding", "mask"}
    assert Mask().visible(CPU) is None
    assert Mask(valid=valid).visible(CPU).shape == (2, 1, 1, 4)


def test_tokens_that_are_not_the_grids_are_refused_with_both_numbers():
    layer = build("reference")
    with pytest.raises(ValueError, match=r"x has 7 tokens and Grid.* has 6"):
        layer(torch.randn(2, 7, DIM), Grid(2, 3))


def last_row_padded(batch: int, grid: Grid) -> torch.Tensor:
    valid = torch.ones(batch, grid.rows, grid.cols, dtype=torch.bool)
    valid[:, -1] = False
    return valid


def hidden_tokens(valid: torch.Tensor, grid: Grid) -> torch.Tensor:
    """(B, N) bool, True = padding; prefix tokens are never padding."""
    prefix = torch.zeros(len(valid), grid.prefix, dtype=torch.bool)
    return torch.cat([prefix, ~valid.flatten(1)], dim=1)


@each_backend
@pytest.mark.parametrize("rubbish", [float("nan"), float("inf"), float("-inf"), 1e30])
def test_what_lies_in_padding_reaches_no_output_and_no_gradient(backend, rubbish):
    layer = build(backend, qk_norm=True)
    x = torch.randn(2, GRID.tokens, DIM)
    valid = last_row_padded(2, GRID)
    valid[1] = False
    hidden = hidden_tokens(valid, GRID)

    sides = []
    for content in (x, x.masked_fill(hidden[..., None], rubbish)):
        leaves = [content.clone().requires_grad_(), *layer.parameters()]
        sides.append(with_gradients(layer(leaves[0], GRID, valid=valid), leaves))
    torch.testing.assert_close(*sides, atol=0, rtol=0)
    assert all(torch.isfinite(tensor).all() for tensor in sides[1])
    assert (sides[1][1][hidden] == 0).all()


@each_backend
@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_padded_tokens_could_as_well_be_absent(backend, prefix):
    layer = build(backend)
    padded, alone = Grid(3, 5, prefix), Grid(2, 5, prefix)
    x = torch.randn(2, padded.tokens, DIM)
    out = layer(x, padded, valid=last_row_padded(2, padded))
    expected = layer(x[:, : alone.tokens], alone)
    torch.testing.assert_close(out[:, : alone.tokens], expected, atol=1e-6, rtol=0)


@each_backend
def test_padding_in_the_middle_of_the_map_is_as_absent_as_at_its_end(backend):
    layer = build(backend)
    grid, alone = Grid(2, 3), Grid(1, 4)
    valid = torch.tensor([[[True, False, True], [True, True, False]]])
    x = torch.randn(1, grid.tokens, DIM)
    out = layer(x, grid, valid=valid)[valid.flatten(1)]
    expected = layer(x[valid.flatten(1)][None], alone)[0]
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=0)


@each_backend
def test_a_sample_that_is_all_padding_gives_zeros_and_harms_no_other_sample(backend):
    layer = build(backend)
    valid = torch.tensor([[[True, True], [True, False]], [[False, False], [False, False]]])
    x = torch.randn(2, 4, DIM, requires_grad=True)
    before_projection = []
    layer.proj.register_forward_pre_hook(lambda _, inputs: before_projection.append(inputs[0]))
    out = layer(x, Grid(2, 2), valid=valid)
    _, *grads = with_gradients(out[0], [x, *layer.parameters()])
    assert (before_projection[0][1] == 0).all()
    torch.testing.assert_close(out[:1, :3], layer(x[:1, :3], Grid(1, 3)), atol=1e-6, rtol=0)
    assert (grads[0][1] == 0).all()
    assert all(torch.isfinite(grad).all() for grad in grads)


@each_backend
def test_padding_is_the_same_as_a_map_and_flattened_row_by_row(backend):
    layer = build(backend)
    x = torch.randn(2, GRID.tokens, DIM)
    valid = torch.rand(2, GRID.rows, GRID.cols) > 0.4
    assert torch.equal(layer(x, GRID, valid=valid), layer(x, GRID, valid=valid.flatten(1)))


@each_backend
def test_each_sample_keeps_its_own_padding_when_the_batch_is_as_long_as_the_sequence(backend):
    layer = build(backend)
    grid = Grid(2, 3)
    x = torch.randn(6, 6, DIM)
    valid = torch.rand(6, 2, 3) > 0.4
    valid[:, 0, 0] = True
    together = layer(x, grid, valid=valid)
    alone = torch.cat([layer(x[i : i + 1], grid, valid=valid[i : i + 1]) for i in range(6)])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=0)


def test_prefix_tokens_see_the_map_and_are_seen_where_every_patch_is_padding():
    layer = build("reference")
    x = torch.randn(1, GRID.tokens, DIM)
    nothing = torch.zeros(1, GRID.rows, GRID.cols, dtype=torch.bool)
    value = layer.qkv(x[:, 0]).chunk(3, dim=-1)[2]
    # The class token is the only one that anyone may see, so everyone ends with its value.
    expected = layer.proj(value)[:, None].expand(-1, GRID.tokens, -1)
    torch.testing.assert_close(layer(x, GRID, valid=nothing), expected, atol=1e-6, rtol=0)


def test_the_layer_for_feature_maps_takes_padding_by_row_and_column():
    layer = SelfAttention2d(DIM, HEADS)
    x = torch.randn(2, DIM, 4, 6)
    valid = torch.zeros(2, 4, 6, dtype=torch.bool)
    valid[:, :3, :5] = True
    out, expected = layer(x, valid=valid), layer(x[:, :, :3, :5])
    torch.testing.assert_close(out[:, :, :3, :5], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "shape", [(2, 16), (2, 5, 3), (2, 3, 5, 1), (15,), (1, 3, 5), (3, 3, 5), (2, 1, 1)]
)
def test_padding_of_another_shape_is_refused_with_the_shapes_that_fit(shape):
    valid = torch.ones(shape, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"must have shape \(2, 3, 5\) or \(2, 15\), prefix"):
        build("reference")(torch.randn(2, GRID.tokens, DIM), GRID, valid=valid)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32, torch.float16])
def test_padding_made_of_numbers_is_refused_and_told_how_to_become_bool(dtype):
    valid = torch.ones(2, 3, 5, dtype=dtype)
    with pytest.raises(ValueError, match=r"valid must be .*True = real, got torch\.\w+; .*\.bool"):
        build("reference")(torch.randn(2, GRID.tokens, DIM), GRID, valid=valid)
