"""The formula in the input's own dtype, tuned for speed: it wins on short sequences."""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.attention.backends import HALVES, WrittenOut, without_autocast


def centred(k: Tensor, valid: Tensor | None) -> Tensor:
    """Keys (B, h, N, d) less their mean over the real ones of each sample and head.

    It takes the same number off all scores of a row, which softmax does not see, and keeps those
    scores small: a score of -141 in bf16 is rounded by up to 0.5.
    """
    keys = k.detach()  # whatever is taken off a whole row sends no gradient back
    count = k.shape[-2]
    if valid is not None:
        real = valid[:, None, :, None]  # (B, 1, N, 1)
        keys = keys.masked_fill(~real, 0.0)
        count = real.sum(-2, keepdim=True).clamp(min=1)
    # A sum of fp16 may overflow; one of bf16 may not, and is much faster when it stays bf16.
    precise = torch.float32 if k.dtype == torch.float16 else k.dtype
    return k - (keys.sum(-2, keepdim=True, dtype=precise) / count).to(k.dtype)


class Eager(WrittenOut):
    name = "eager"

    def __call__(self, q, k, v, *, mask, bias, scale, dropout_p):
        hidden = None if (visible := mask.visible(q.device)) is None else ~visible
        if bias is not None:
            # Cast first: what fp16 cannot hold becomes -inf, and a whole row of that would be NaN.
            bias = bias.to(q.dtype)
            cut = bias == float("-inf")
            hidden = cut if hidden is None else hidden | cut
            bias = bias.masked_fill(cut, 0.0)
        with without_autocast(q.device.type):
            k = centred(k, mask.valid) if k.dtype in HALVES else k
            scores = (q * scale) @ k.transpose(-2, -1)
            if hidden is None:
                return F.dropout(F.softmax(scores, dim=-1), dropout_p) @ v
            # A dead row keeps its scores, so that its softmax is finite, and its output is made 0:
            # that costs N x d and not N x N, and sends no gradient back.
            dead = hidden.all(-1, keepdim=True)
            far = hidden & ~dead
            if bias is None:
                bias = torch.zeros_like(far, dtype=q.dtype)
            if q.dtype == torch.float16:  # a hidden score may be inf, and inf - inf is NaN
                scores = (scores + bias).masked_fill(far, float("-inf"))
            else:  # an addition costs nothing in backward
                scores += bias.masked_fill(far, float("-inf"))
            out = F.dropout(F.softmax(scores, dim=-1), dropout_p) @ v
            return out.masked_fill(dead, 0.0)


BACKEND = Eager()
