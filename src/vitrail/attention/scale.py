"""What the scores q kᵀ are multiplied by: one number, or a factor that each head learns.

The learned factor is exp(log_scale), held below 100 as in Swin V2 (Liu et al. 2022, eq. 2), and
begins at d**-0.5. Queries carry it to the kernel, so every kernel serves it.
"""

import math

import torch
from torch import Tensor, nn

from vitrail.errors import UserError

LEARNED = "learned"
LARGEST = 100.0


def kernel_scale(scale: float | str | None, width: int) -> float:
    """The number that a kernel multiplies the scores of heads of that width by.

    None is width**-0.5 (Vaswani et al. 2017); "learned" leaves a kernel nothing to do. UserError
    for anything else but a number above 0.
    """
    if scale is None or scale == LEARNED:
        return width**-0.5 if scale is None else 1.0
    number = isinstance(scale, int | float) and not isinstance(scale, bool)
    if not number or not 0 < scale < math.inf:
        raise UserError(
            f"scale={scale} is neither a number above 0 nor `{LEARNED}`; use one of them, or null "
            f"for head width ** -0.5, which is {width**-0.5:g} here"
        )
    return float(scale)


def log_scale(heads: int, width: int) -> nn.Parameter:
    """(h,), the logarithm of width**-0.5."""
    return nn.Parameter(torch.full((heads,), -0.5 * math.log(width)))


def score_scale(log_scale: Tensor | None, scale: float) -> float | Tensor:
    """All that scores are multiplied by: a number, or (h, 1, 1) where heads have learned theirs."""
    if log_scale is None:
        return scale
    return scale * log_scale.clamp(max=math.log(LARGEST)).exp()[:, None, None]
