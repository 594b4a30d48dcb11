"""A padding mask on the token grid: what lies in padding is as if it were not there."""

import pytest
import torch

from vitrail.attention import Grid, MultiHeadAttention2d, SelfAttention2d

from .cases import ON_CPU
from .oracle import with_gradients

DIM, HEADS = 12, 3
GRID = Grid(3, 5, 1)

each_backend = pytest.mark.parametrize("backend", ON_CPU)


def build(backend: str, **options) -> MultiHeadAttention2d:
    torch.manual_seed(0)
    return MultiHeadAttention2d(DIM, HEADS, backend=backend, **options)


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
