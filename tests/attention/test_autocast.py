"""Halves and autocast: near fp32 and never NaN, whatever the mask."""

import pytest
import torch

from vitrail.attention import Grid, MultiHeadAttention2d
from vitrail.attention.positions.rope import Rope

from .cases import ON_CPU

GRID = Grid(3, 5, 1)

each_backend = pytest.mark.parametrize("backend", ON_CPU)


def masks() -> dict[str, dict]:
    """What a call may be given: rows with one visible key and rows with none are among them."""
    torch.manual_seed(1)
    tokens = GRID.tokens
    mask = torch.rand(tokens, tokens) > 0.4
    mask[0] = False
    mask[1] = False
    mask[1, 3] = True
    valid = torch.rand(2, 3, 5) > 0.4
    bias = torch.randn(1, 3, tokens, tokens)
    return {
        "none": {},
        "padding": {"valid": valid},
        "mask": {"mask": mask},
        "bias": {"bias": bias},
        "bias with -inf": {"bias": bias.masked_fill(~mask, float("-inf"))},
        "all": {"valid": valid, "mask": mask, "bias": bias},
    }


@each_backend
@pytest.mark.parametrize("given", masks().values(), ids=masks().keys())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("cast", [False, True], ids=["autocast", "cast"])
def test_a_layer_in_halves_stays_near_fp32_and_finite(backend, given, dtype, cast):
    torch.manual_seed(0)
    layer = MultiHeadAttention2d(12, 3, backend=backend, qk_norm=True, position=Rope())
    x = torch.randn(2, GRID.tokens, 12)
    expected = layer(x, GRID, **given)
    if cast:
        layer, x = layer.to(dtype), x.to(dtype)
    x.requires_grad_()
    with torch.autocast("cpu", dtype=dtype, enabled=not cast):
        out = layer(x, GRID, **given)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), expected, atol=2e-2, rtol=0)
    for gradient in torch.autograd.grad(out.float().square().sum(), [x, *layer.parameters()]):
        assert torch.isfinite(gradient).all()
