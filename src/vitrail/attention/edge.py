"""What an attention call must look like: checked once at the edge, where the message can say it.

A fused kernel does not look. Given fewer keys than values it reads past the end, given a mask on
another device it reads garbage.
"""

import math

from torch import Tensor

from vitrail.attention.mask import Mask
from vitrail.errors import UserError


def check_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask,
    bias: Tensor | None,
    scale: float | None,
    dropout_p: float,
) -> None:
    """Raise UserError with the first argument of `attend` that does not fit the others."""
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.ndim == k.ndim == v.ndim == 4 or not (
        q.shape[:2] == k.shape[:2] == v.shape[:2]
        and q.shape[3] == k.shape[3]
        and k.shape[2] == v.shape[2]
        and v.shape[3] <= q.shape[3]
    ):
        raise UserError(
            f"{shapes} do not fit together; q is (B, h, N, d), k (B, h, M, d) and v (B, h, M, d') "
            "with d' at most d"
        )
    if not q.dtype == k.dtype == v.dtype or not q.device == k.device == v.device:
        raise UserError(
            f"q is {q.dtype} on {q.device}, k {k.dtype} on {k.device}, v {v.dtype} on {v.device}; "
            "give all three one dtype and one device"
        )
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    full = ((1, batch), (1, heads), (queries,), (keys,))
    for name, tensor, axes in (
        ("mask=", mask.allowed, full),
        ("bias=", bias, full),
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
    if bias is not None and not bias.is_floating_point():
        raise UserError(
            f"bias= is {bias.dtype}; it must be a float tensor, and what hides keys goes into mask="
        )
    if scale is not None and (isinstance(scale, Tensor) or not math.isfinite(scale)):
        raise UserError(
            f"scale={scale} is no finite number; multiply q by a factor of its own for each head"
        )
    check_dropout(dropout_p)


def check_dropout(dropout_p: float) -> None:
    """Raise UserError for what is no share of attention weights."""
    if not 0 <= dropout_p < 1:
        raise UserError(
            f"dropout={dropout_p} is no share of the attention weights; use 0 or more, below 1"
        )
