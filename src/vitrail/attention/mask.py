"""Who may see whom, and the argument checks of attention.

Every mask is bool with one polarity: True = is real / may be seen. Several masks combine by AND.
Fused kernels do not look at their arguments: given fewer keys than values they read past the end,
given a mask on another device they read garbage.
"""

import math
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
                    f"Mask({name}=) must be torch.bool with {axes} axes, True = may be seen, "
                    f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
                )

    @property
    def kinds(self) -> frozenset[str]:
        """Of `padding` (valid), `mask` (allowed) and `pattern`, those that are there."""
        parts = {"padding": self.valid, "mask": self.allowed, "pattern": self.pattern}
        return frozenset(kind for kind, part in parts.items() if part is not None)

    def visible(self, device: torch.device) -> Tensor | None:
        """Bool, True = may be seen; (1|B, 1|h, N, N), or (B, 1, 1, N) for `valid` alone."""
        parts = (
            None if self.valid is None else self.valid.unsqueeze(1).unsqueeze(1),
            self.allowed,
            None if self.pattern is None else self.pattern.visible(device),
        )
        there = [part for part in parts if part is not None]
        return reduce(torch.logical_and, there) if there else None

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
            f"valid must be torch.bool with True = real, got {valid.dtype}; "
            "a mask of numbers becomes one by `valid.bool()`"
        )
    if valid.shape not in ((batch, grid.rows, grid.cols), (batch, grid.area)):
        raise UserError(
            f"valid must have shape ({batch}, {grid.rows}, {grid.cols}) or ({batch}, {grid.area}), "
            f"prefix tokens excluded, got {tuple(valid.shape)}"
        )
    return F.pad(valid.flatten(1), (grid.prefix, 0), value=True)


def check_bias(name: str, bias: Tensor | None) -> None:
    """Raise UserError for a bias that is not made of floats."""
    if bias is not None and not bias.is_floating_point():
        raise UserError(
            f"{name} must be a float tensor that is added to the scores, got {bias.dtype}; "
            "a bool tensor that hides keys goes into mask="
        )


def with_four_axes(name: str, tensor: Tensor | None, batch: int, heads: int, tokens: int):
    """A `mask`, bool, or a `bias`, float, (N, N) or (1|B, 1|h, N, N) -> 4-D; None stays None."""
    if tensor is None:
        return None
    if name == "bias":
        check_bias(name, tensor)
    elif tensor.dtype != torch.bool:
        raise UserError(
            f"mask must be torch.bool with True = may be seen, got {tensor.dtype}; 0/1 numbers "
            "become one by `mask.bool()`, numbers to add to the scores go into bias="
        )
    # A 3-D (B, N, N) tensor with B == h would be read as one mask a head, silently: hence no 3-D.
    fits = tensor.ndim == 4 and tensor.shape[0] in (1, batch) and tensor.shape[1] in (1, heads)
    if tensor.shape[-2:] != (tokens, tokens) or not (tensor.ndim == 2 or fits):
        raise UserError(
            f"{name} has shape {tuple(tensor.shape)}; use ({tokens}, {tokens}) for all, or "
            f"(1|{batch}, 1|{heads}, {tokens}, {tokens}) with the batch and head axes spelled out"
        )
    return tensor if tensor.ndim == 4 else tensor[None, None]


def check_call(q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias, scale, dropout_p: float) -> None:
    """Raise UserError with the first argument of `attend` that does not fit the others."""
    if not q.ndim == k.ndim == v.ndim == 4 or not (
        q.shape[:2] == k.shape[:2] == v.shape[:2]
        and q.shape[3] == k.shape[3]
        and k.shape[2] == v.shape[2]
        and v.shape[3] <= q.shape[3]
    ):
        raise UserError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)} do not fit together; "
            "q is (B, h, N, d), k (B, h, M, d) and v (B, h, M, d') with d' at most d"
        )
    if not q.dtype == k.dtype == v.dtype or not q.device == k.device == v.device:
        raise UserError(
            f"q is {q.dtype} on {q.device}, k {k.dtype} on {k.device}, v {v.dtype} on {v.device}; "
            "give all three one dtype and one device"
        )
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    pairs = ((1, batch), (1, heads), (queries,), (keys,))
    for name, tensor, axes in (
        ("mask=", mask.allowed, pairs),
        ("bias=", bias, pairs),
        ("Mask(valid=)", mask.valid, ((batch,), (keys,))),
    ):
        if tensor is None:
            continue
        if tensor.ndim != len(axes) or any(
            size not in fit for size, fit in zip(tensor.shape, axes, strict=True)
        ):
            wanted = ", ".join("|".join(map(str, dict.fromkeys(fit))) for fit in axes)
            raise UserError(f"{name} has shape {tuple(tensor.shape)}; here it must be ({wanted})")
        if tensor.device != q.device:
            raise UserError(
                f"{name} lies on {tensor.device} and q on {q.device}; move it with .to(q.device)"
            )
    check_bias("bias=", bias)
    if scale is not None and (isinstance(scale, Tensor) or not math.isfinite(scale)):
        raise UserError(
            f"scale must be a finite number, got {scale}; "
            "multiply q by a factor of its own for each head"
        )
    check_dropout(dropout_p)


def check_dropout(dropout_p: float) -> None:
    """Raise UserError for a share of the attention weights outside of [0, 1)."""
    if not 0 <= dropout_p < 1:
        raise UserError(f"dropout must be in [0, 1), got {dropout_p}")
