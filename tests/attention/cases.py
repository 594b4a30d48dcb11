"""The inputs of the contract test: kinds of masks on grids that are mostly not square."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from vitrail.attention import Grid, Mask, backends
from vitrail.attention.backends import Request
from vitrail.attention.mask import valid_tokens, with_four_axes
from vitrail.attention.patterns import GridPattern
from vitrail.attention.patterns.raster import Raster

BATCH, HEADS, WIDTH = 2, 3, 8

PREFIXES = (0, 1, 5)

# The backends that can train on a CPU. The others are held to their refusals there, and to the same
# contract on a GPU.
ON_CPU = backends.permitted(Request("cpu", torch.float32, BATCH, HEADS, 15, 15, WIDTH))


@dataclass(frozen=True)
class Kind:
    """Which masks a call is given; `mask` and `bias` are the axes that they have before (N, N).

    rule: whether a pattern hides the tokens behind a query in reading order.
    """

    padded: bool = False
    mask: tuple[int, ...] | None = None
    bias: tuple[int, ...] | None = None
    cut: bool = False
    learned: bool = False
    rule: bool = False


KINDS = {
    "no mask": Kind(),
    "padding": Kind(padded=True),
    "mask NxN": Kind(mask=()),
    "mask Bx1xNxN": Kind(mask=(BATCH, 1)),
    "mask BxhxNxN": Kind(mask=(BATCH, HEADS)),
    "pattern": Kind(rule=True),
    "padding and pattern": Kind(padded=True, rule=True),
    "bias": Kind(bias=(1, HEADS)),
    "bias with -inf": Kind(bias=(BATCH, 1), cut=True),
    "learned bias": Kind(bias=(1, HEADS), learned=True),
    "padding, mask and bias": Kind(padded=True, mask=(BATCH, HEADS), bias=(), cut=True),
    "padding and learned bias": Kind(padded=True, bias=(1, HEADS), learned=True),
    "all of them, learned": Kind(
        True, (BATCH, HEADS), (BATCH, HEADS), cut=True, learned=True, rule=True
    ),
}


def mask_and_bias(kind: Kind, grid: Grid, dtype: torch.dtype) -> tuple[Mask, Tensor | None]:
    """The mask and bias of that kind on that grid, drawn from torch's global generator."""
    tokens = grid.tokens
    valid = _padding(grid) if kind.padded else None
    mask = None if kind.mask is None else _visible((*kind.mask, tokens, tokens))
    bias = None
    if kind.bias is not None:
        bias = torch.randn(*kind.bias, tokens, tokens).to(dtype)
        if kind.cut:
            bias = bias.masked_fill(~_visible(bias.shape), float("-inf"))
    return (
        Mask(
            valid=valid_tokens(valid, grid, BATCH),
            allowed=with_four_axes("mask", mask, BATCH, HEADS, tokens),
            pattern=GridPattern(Raster(), grid) if kind.rule else None,
        ),
        with_four_axes("bias", bias, BATCH, HEADS, tokens),
    )


def _padding(grid: Grid) -> Tensor:
    """Padding in the last column of sample 0, unless it is the only one, and in all of sample 1."""
    valid = torch.ones(BATCH, grid.rows, grid.cols, dtype=torch.bool)
    valid[0, :, max(1, grid.cols - 1) :] = False
    valid[1] = False
    return valid


def _visible(shape: tuple[int, ...]) -> Tensor:
    """Random, but the first row sees nothing and the last one, if it is another, a single key."""
    visible = torch.rand(shape) > 0.3
    visible[..., -1, :] = False
    visible[..., -1, 0] = True
    visible[..., 0, :] = False
    return visible


def seen_while(call: Callable[[], object]) -> set[str]:
    """The names of all operations and GPU kernels that torch runs during the call."""
    gpu = [ProfilerActivity.CUDA] * torch.cuda.is_available()
    with profile(activities=[ProfilerActivity.CPU, *gpu]) as profiler:
        call()
    return {event.key for event in profiler.key_averages()}
