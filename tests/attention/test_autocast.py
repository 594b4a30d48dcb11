"""Halves and autocast: near fp32 and never NaN, whatever the mask."""

import pytest
import torch

from vitrail.attention import Grid, MultiHeadAttention2d
from vitrail.attention.positions.rope import Rope

from .cases import ON_CPU

GRID = Grid(3, 5, 1)

torch.manual_seed(1)
ALLOWED = torch.rand(16, 16) > 0.4
ALLOWED[:2] = False  # the first sees nobody and the second one
ALLOWED[1, 3] = True
VALID = torch.rand(2, 3, 5) > 0.4
BIAS = torch.randn(1, 3, 16, 16)
MASKS = {
    "none": {},
    "padding": {"valid": VALID},
    "mask": {"mask": ALLOWED},
    "bias": {"bias": BIAS},
    "bias with -inf": {"bias": BIAS.masked_fill(~ALLOWED, float("-inf"))},
    "all": {"valid": VALID, "mask": ALLOWED, "bias": BIAS},
}


@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("given", MASKS.values(), ids=MASKS)
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
