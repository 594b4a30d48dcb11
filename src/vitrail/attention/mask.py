"""Who may see whom: padding masks and attention masks, checked at the edge and kept in their parts.

Every mask is bool with one polarity: True = is real / may be seen. Several masks combine by AND.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.attention.grid import Grid
from vitrail.errors import UserError


class Predicate(Protocol):
    """A mask without a tensor: a rule on token indices, hashable, equal for equal rules."""

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """Bool, True = may be seen, for int token indices that broadcast against each other."""
        ...

    def visible(self, device: torch.device) -> Tensor:
        """The rule for all pairs, (1, 1, N, N) bool."""
        ...


@dataclass(frozen=True)
class Mask:
    """Who may see whom, still in parts so that a backend can lower it its own best way.

    valid: (B, N) bool, True = the key is real. allowed: (1|B, 1|h, N, N) bool, True = the query
    (third axis) may see the key (fourth axis). pattern: a rule in place of such a tensor. Each may
    be None; all None means that everyone sees everyone.
    """

    valid: Tensor | None = None
    allowed: Tensor | None = None
    pattern: Predicate | None = None

    def __post_init__(self):
        # A float would be added to the scores, and a 3-D mask read as one mask a head.
        for name, tensor, axes in (("valid", self.valid, 2), ("allowed", self.allowed, 4)):
            if tensor is not None and (tensor.dtype != torch.bool or tensor.ndim != axes):
                raise UserError(
                    f"Mask({name}=) is {tensor.dtype} of shape {tuple(tensor.shape)}; "
                    f"it must be torch.bool with {axes} axes, True = may be seen"
                )

    @property
    def kinds(self) -> frozenset[str]:
        """Of `padding` (valid), `mask` (an attention mask) and `pattern`, those that are there."""
        parts = {"padding": self.valid, "mask": self.allowed, "pattern": self.pattern}
        return frozenset(kind for kind, part in parts.items() if part is not None)

    def visible(self, device: torch.device) -> Tensor | None:
        """Bool, True = may be seen; (1|B, 1|h, N, N), or (B, 1, 1, N) for `valid` alone."""
        parts = []
        if self.valid is not None:
            parts.append(self.valid[:, None, None, :])
        if self.allowed is not None:
            parts.append(self.allowed)
        if self.pattern is not None:
            parts.append(self.pattern.visible(device))
        return reduce(torch.logical_and, parts) if parts else None

    def additive(self, bias: Tensor | None, dtype: torch.dtype, device: torch.device):
        """The mask folded into `bias` as -inf where hidden; bool while there is no bias."""
        visible = self.visible(device)
        if bias is None or visible is None:
            return visible if bias is None else bias.to(dtype)
        return bias.to(dtype).masked_fill(~visible, float("-inf"))


def valid_tokens(valid: Tensor | None, grid: Grid, batch: int) -> Tensor | None:
    """(B, rows, cols) or (B, rows * cols) bool, True = real -> (B, N), its prefix always real."""
    if valid is None:
        return None
    if valid.dtype != torch.bool:
        raise UserError(
            f"valid has dtype {valid.dtype}; it must be torch.bool with True = real "
            "(a number mask becomes one by `valid.bool()`)"
        )
    if valid.shape not in ((batch, grid.rows, grid.cols), (batch, grid.area)):
        raise UserError(
            f"valid has shape {tuple(valid.shape)}; for this batch it must be "
            f"({batch}, {grid.rows}, {grid.cols}) or ({batch}, {grid.area}), prefix tokens excluded"
        )
    return F.pad(valid.flatten(1), (grid.prefix, 0), value=True)


def attention_mask(mask: Tensor | None, batch: int, heads: int, tokens: int) -> Tensor | None:
    """(N, N) or (1|B, 1|h, N, N) bool, True = may be seen -> 4-D."""
    if mask is None:
        return None
    if mask.dtype != torch.bool:
        raise UserError(
            f"mask has dtype {mask.dtype}; it must be torch.bool with True = may be seen "
            "(0/1 numbers become one by `mask.bool()`; numbers to add to the scores go into bias=)"
        )
    return _square(mask, "mask", batch, heads, tokens)


def attention_bias(bias: Tensor | None, batch: int, heads: int, tokens: int) -> Tensor | None:
    """(N, N) or (1|B, 1|h, N, N) float, added to the scaled scores, -inf allowed -> 4-D."""
    if bias is None:
        return None
    if not bias.is_floating_point():
        raise UserError(
            f"bias has dtype {bias.dtype}; it must be a float tensor that is added to the scores "
            "(a bool tensor that hides keys goes into mask=)"
        )
    return _square(bias, "bias", batch, heads, tokens)


def _square(tensor: Tensor, name: str, batch: int, heads: int, tokens: int) -> Tensor:
    # A 3-D (B, N, N) tensor with B == h would be read as one mask a head, silently: hence no 3-D.
    fits = tensor.ndim == 4 and tensor.shape[0] in (1, batch) and tensor.shape[1] in (1, heads)
    if tensor.shape[-2:] != (tokens, tokens) or not (tensor.ndim == 2 or fits):
        raise UserError(
            f"{name} has shape {tuple(tensor.shape)}; use ({tokens}, {tokens}) for all, or "
            f"(1|{batch}, 1|{heads}, {tokens}, {tokens}) with the batch and head axes spelled out"
        )
    return tensor if tensor.ndim == 4 else tensor[None, None]
