"""The formula, in at least fp32: slow, plain, and what every other backend is held against."""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.attention.backends import WrittenOut, without_autocast
from vitrail.attention.mask import Mask


def attention_weights(
    q: Tensor, k: Tensor, *, mask: Mask, bias: Tensor | None, scale: float
) -> Tensor:
    """softmax(q k^T * scale + bias) over what may be seen, (B, h, Nq, Nk); dead rows are 0.

    Vaswani et al. 2017, eq. 1. Computed in fp32, or in fp64 for fp64 inputs.
    """
    # The scale goes onto q, hidden keys into masked_fill: inductor makes flash of `(q @ kT) * s`.
    precise = torch.promote_types(q.dtype, torch.float32)
    scores = (q.to(precise) * scale) @ k.to(precise).transpose(-2, -1)
    if bias is not None:
        scores = scores + bias.to(precise)
    visible = mask.visible(q.device)
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    # softmax over nothing is 0/0, its gradient NaN: such rows are made finite before and 0 after.
    dead = (scores == float("-inf")).all(-1, keepdim=True)
    return F.softmax(scores.masked_fill(dead, 0.0), dim=-1).masked_fill(dead, 0.0)


class Reference(WrittenOut):
    name = "reference"

    def __call__(self, q, k, v, *, mask, bias, scale, dropout_p):
        with without_autocast(q.device.type):
            weights = attention_weights(q, k, mask=mask, bias=bias, scale=scale)
            weights = F.dropout(weights, dropout_p)
            return (weights @ v.to(weights.dtype)).to(q.dtype)


BACKEND = Reference()
