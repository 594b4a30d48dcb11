"""Rotations by row and column, equal to timm's, that make scores depend on differences alone."""

import pytest
import torch
from timm.layers import RotaryEmbeddingCat, RotaryEmbeddingMixed
from timm.layers.pos_embed_sincos import apply_rot_embed_cat

from vitrail.attention import Grid
from vitrail.attention.positions.rope import Rope, RopeMixed

HEADS = 3
SHAPES = [(4, 4), (3, 5), (7, 2), (1, 9)]

each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
each_prefix = pytest.mark.parametrize("prefix", [0, 1, 5])


def turned_behind(x: torch.Tensor, prefix: int, table: torch.Tensor) -> torch.Tensor:
    """timm's own rotation of the tokens on the map."""
    return torch.cat([x[:, :, :prefix], apply_rot_embed_cat(x[:, :, prefix:], table)], dim=2)


@each_shape
@each_prefix
@pytest.mark.parametrize("width", [4, 8, 64])
def test_axial_rotation_equals_timms(shape, prefix, width):
    torch.manual_seed(0)
    grid = Grid(*shape, prefix)
    q, k = torch.randn(2, 2, HEADS, grid.tokens, width)
    theirs = RotaryEmbeddingCat(width, temperature=100, in_pixels=False, grid_indexing="xy")
    table = theirs.get_embed(list(shape))
    ours = Rope().layer(HEADS, width).rotate(q, k, grid)
    for before, after in zip((q, k), ours, strict=True):
        torch.testing.assert_close(after, turned_behind(before, prefix, table), atol=2e-6, rtol=0)


@each_shape
@each_prefix
def test_mixed_rotation_equals_timms_with_its_frequencies(shape, prefix):
    torch.manual_seed(0)
    width = 8
    grid = Grid(*shape, prefix)
    q, k = torch.randn(2, 2, HEADS, grid.tokens, width)
    theirs = RotaryEmbeddingMixed(
        HEADS * width, depth=2, num_heads=HEADS, temperature=10.0, grid_indexing="xy"
    )
    layer = RopeMixed().layer(HEADS, width)
    with torch.no_grad():
        layer.frequencies.copy_(theirs.freqs[:, 1])
    table = theirs.get_embed(list(shape))[1]
    for before, after in zip((q, k), layer.rotate(q, k, grid), strict=True):
        torch.testing.assert_close(after, turned_behind(before, prefix, table), atol=2e-6, rtol=0)


def test_mixed_frequencies_begin_as_timms_do_up_to_their_random_direction():
    width = 16
    torch.manual_seed(0)
    ours = RopeMixed().layer(HEADS, width).frequencies
    torch.manual_seed(0)
    theirs = RotaryEmbeddingMixed(HEADS * width, depth=1, num_heads=HEADS, temperature=10.0)
    assert ours.shape == (2, HEADS, width // 2)
    torch.testing.assert_close(ours, theirs.freqs[:, 0])


@pytest.mark.parametrize("kind", [Rope(), RopeMixed()], ids=str)
def test_a_score_depends_on_the_difference_of_places_alone(kind):
    torch.manual_seed(0)
    grid = Grid(4, 6)
    q, k = torch.randn(2, 1, HEADS, 1, 8).expand(-1, -1, -1, grid.tokens, -1)
    q, k = kind.layer(HEADS, 8).rotate(q, k, grid)
    scores = (q @ k.transpose(-2, -1)).unflatten(-2, (4, 6)).unflatten(-1, (4, 6))
    # From any query one step down and two to the right is the same as from the corner.
    further = torch.stack([scores[..., r, c, r + 1, c + 2] for r in range(3) for c in range(4)])
    torch.testing.assert_close(further, further[:1].expand_as(further), atol=1e-5, rtol=0)
    assert not torch.allclose(scores[..., 0, 0, 1, 2], scores[..., 0, 0, 2, 1], atol=1e-3)


@pytest.mark.parametrize("kind", [Rope(), RopeMixed()], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_angles_stay_fp32_under_autocast_and_in_a_model_cast_to_halves(kind, dtype):
    torch.manual_seed(0)
    grid = Grid(3, 50)
    q, k = torch.randn(2, 1, HEADS, grid.tokens, 8).to(dtype)
    layer = kind.layer(HEADS, 8)
    expected = layer.rotate(q.float(), k.float(), grid)[0]
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(layer.rotate(q.float(), k.float(), grid)[0], expected)
    if kind == Rope():  # nothing to learn, so nothing that the cast rounds
        assert torch.equal(layer.to(dtype).rotate(q, k, grid)[0], expected.to(dtype))
        assert not list(layer.parameters())
        assert not layer.state_dict()


@pytest.mark.parametrize("kind", [Rope(), RopeMixed()], ids=str)
@pytest.mark.parametrize("width, way_out", [(6, "4 or 8"), (10, "8 or 12"), (2, "4"), (3, "4")])
def test_a_head_width_that_4_does_not_divide_is_refused(kind, width, way_out):
    with pytest.raises(ValueError, match=f"head width .* got {width}; use {way_out}$"):
        kind.layer(HEADS, width)
