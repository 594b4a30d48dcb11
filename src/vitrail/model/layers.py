"""Dropout and GELU that take no longer than they must, on a CPU and in compiled graphs."""

import torch
import torch.nn.functional as F
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


class Gelu(nn.Module):
    """x Φ(x), with Φ the normal distribution function (Hendrycks & Gimpel 2016), of any shape.

    torch's kernel for a CPU, which a compiler does not look into: what it generates instead takes
    1.5 to 1.8 times as long, forward and backward. An exported graph names torch's operator.
    """

    def forward(self, x: Tensor) -> Tensor:
        compiling = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
        return _gelu(x) if compiling and x.device.type == "cpu" else F.gelu(x)


@torch.library.custom_op("vitrail::gelu", mutates_args=())
def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


@torch.library.custom_op("vitrail::gelu_backward", mutates_args=())
def _gelu_backward(grad: Tensor, x: Tensor) -> Tensor:
    return torch.ops.aten.gelu_backward(grad, x)


# What a compiler asks of shapes and strides comes from the same functions.
_gelu.register_fake(F.gelu)
_gelu_backward.register_fake(torch.ops.aten.gelu_backward)
_gelu.register_autograd(
    lambda ctx, grad: _gelu_backward(grad, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
