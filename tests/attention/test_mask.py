"""Attention masks and biases: one polarity, combined by AND, refused at the edge when malformed."""

import pytest
import torch

from vitrail.attention import Grid, Mask, MultiHeadAttention2d, attend

from .cases import ON_CPU
from .oracle import assert_near, attention

DIM, HEADS = 12, 3
CPU = torch.device("cpu")
INTEGERS = (torch.uint8, torch.int64)
FLOATS = (torch.float32, torch.float16, torch.bfloat16)

each_backend = pytest.mark.parametrize("backend", ON_CPU)


def build(backend: str, heads: int = HEADS) -> MultiHeadAttention2d:
    torch.manual_seed(0)
    return MultiHeadAttention2d(DIM, heads, backend=backend)


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
