"""Dropout that does not take longer than the layer it acts on."""

import torch
from torch import Tensor, nn

LEVELS = 2**16


class Dropout(nn.Dropout):
    """torch's Dropout, which on a CPU reads four draws out of one random number of 64 bits.

    torch draws a number for each value there, on one core, which took a sixth of the time of a
    training step. `p` is rounded to a 65536th. Compiled code draws in torch's way, which is fast.
    """

    def forward(self, x: Tensor) -> Tensor:
        idle = not self.training or self.p == 0 or self.p == 1
        if idle or x.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(x)
        return drop(x, min(round(self.p * LEVELS), LEVELS - 1))


def drop(x: Tensor, share: int) -> Tensor:
    """`x` of any shape, each value 0 with probability share / 65536, the others scaled up."""
    numbers = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    draws = numbers.view(torch.int16)[: x.numel()].view(x.shape)
    kept = torch.empty_like(x, requires_grad=False)
    torch.ge(draws, share - LEVELS // 2, out=kept)  # in x's dtype: mixed ones multiply slowly
    return x * kept.mul_(LEVELS / (LEVELS - share))
