"""Every pattern of the folder's listing in its own examples, and the slow twin of all of them."""

import torch
from torch import Tensor

from vitrail.attention import Grid, Mask, attend, patterns
from vitrail.attention.patterns import Call, GridPattern, Pattern

from ..oracle import assert_same

EXAMPLES = [example for name in patterns.names() for example in patterns.load(name).examples()]


def regrouped(
    pattern: Pattern, whole: Call, tile_bias: Tensor | None, grid: Grid, backend: str = "reference"
) -> Tensor:
    """(B, h, N, d) as a layer computes it: split, attended call by call, joined."""
    outs = [
        attend(call.q, call.k, call.v, mask=call.mask, bias=call.bias, backend=backend)
        for call in pattern.split(whole, tile_bias, grid)
    ]
    return pattern.join(outs, grid)


def dense(pattern: Pattern, whole: Call, tile_bias: Tensor | None, grid: Grid) -> Tensor:
    """(B, h, N, d) by one mask over all pairs and one bias, laid out pair by pair."""
    bias = whole.bias
    if tile_bias is not None:
        tile = pattern.tile(grid)
        row, col = pattern.places(grid, whole.q.device)
        index = torch.cat([torch.arange(grid.prefix), grid.prefix + row * tile.cols + col])
        laid_out = tile_bias[:, :, index[:, None], index[None, :]]
        bias = laid_out if bias is None else bias + laid_out
    mask = Mask(whole.mask.valid, whole.mask.allowed, GridPattern(pattern, grid))
    return attend(whole.q, whole.k, whole.v, mask=mask, bias=bias, backend="reference")


def check_regrouped(pattern: Pattern, grid: Grid) -> None:
    """Smaller calls equal one call with a mask, forward and backward."""
    torch.manual_seed(0)
    leaves = [leaf.requires_grad_() for leaf in torch.randn(3, 2, 3, grid.tokens, 4).double()]
    whole = Call(*leaves, Mask(), None)
    ours, slow = (way(pattern, whole, None, grid) for way in (regrouped, dense))
    assert_same(ours, leaves, slow, leaves)
