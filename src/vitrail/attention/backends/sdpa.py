"""torch's scaled_dot_product_attention, the kernel left to torch or pinned by a sibling file.

On a CPU each kernel makes rows that may see nothing 0. Elsewhere that is torch's word alone, and
cuDNN, which torch may pick, is given a finite number in place of -inf (pytorch#177868); so no such
row reaches a kernel there.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends import cuda as switches  # which hold for every device
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitrail.attention.backends import EVERYWHERE, Backend, Capability, Kernels, Request

SWITCHES = {
    SDPBackend.MATH: (switches.math_sdp_enabled, switches.enable_math_sdp),
    SDPBackend.FLASH_ATTENTION: (switches.flash_sdp_enabled, switches.enable_flash_sdp),
    SDPBackend.EFFICIENT_ATTENTION: (
        switches.mem_efficient_sdp_enabled,
        switches.enable_mem_efficient_sdp,
    ),
    SDPBackend.CUDNN_ATTENTION: (switches.cudnn_sdp_enabled, switches.enable_cudnn_sdp),
}


class Sdpa(Backend):
    """`pinned` is the one kernel that may run; None leaves the choice to torch.

    cuDNN is left out of that choice where its gradients are known to be NaN.
    """

    name = "sdpa"
    by_name_only = "torch picks a kernel for every call"
    pinned: SDPBackend | None = None
    capabilities = {EVERYWHERE: Capability()}

    def kernels(self, request: Request, *, compiled: bool = False) -> Kernels:
        if compiled:  # taken apart into whichever kernel torch chose
            return Kernels()
        return Kernels(required=frozenset({"aten::scaled_dot_product_attention"}))

    def __call__(self, q, k, v, *, mask, bias, scale, dropout_p):
        # The fused kernels of torch take no other layout, and say so only deep inside.
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        bias, dead = mask.additive(bias, q.dtype, q.device), None
        if bias is not None and not torch.is_grad_enabled():
            # Flash on CPU refuses a learned bias even where no gradient is recorded.
            bias = bias.detach()
        if bias is not None and q.device.type != "cpu":
            bias, dead = without_dead_rows(bias)
        # Entered here, not around the model: outside a compiled graph it does not force the kernel.
        with self._allowed(q, k, masked=bias is not None):
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=bias, dropout_p=dropout_p, scale=scale
            )
        return out if dead is None else out.masked_fill(dead, 0.0)

    def _allowed(self, q: Tensor, k: Tensor, *, masked: bool) -> AbstractContextManager:
        if self.pinned is not None:
            return sdpa_kernel(self.pinned) if torch.compiler.is_compiling() else only(self.pinned)
        trains = q.device.type == "cuda" and torch.is_grad_enabled()
        if trains and cudnn_gives_nan(q.shape[-2], k.shape[-2], masked=masked):
            return sdpa_kernel(
                [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
            )
        return nullcontext()


@contextmanager
def only(pinned: SDPBackend) -> Iterator[None]:
    """torch's `sdpa_kernel`, which a compiler needs, in 2 microseconds where that takes 12."""
    changed = [
        (enable, before)
        for one, (enabled, enable) in SWITCHES.items()
        if (before := enabled()) != (one is pinned)
    ]
    try:
        for enable, before in changed:
            enable(not before)
        yield
    finally:
        for enable, before in changed:
            enable(before)


def pinned_to(operator: str) -> Kernels:
    """What a profiler sees when that operator is SDPA's kernel, and not the written-out one."""
    written_out = "aten::_scaled_dot_product_attention_math"
    return Kernels(required=frozenset({operator}), forbidden=frozenset({written_out}))


def without_dead_rows(bias: Tensor) -> tuple[Tensor, Tensor]:
    """The mask or bias with rows of nothing to see made rows of everything, and where they were.

    bias: (1|B, 1|h, 1|N, N), bool with True = may be seen, or float with -inf = may not. The second
    is bool, (…, 1|N, 1): there the output is to be made 0, and then no gradient comes back.
    """
    if bias.dtype == torch.bool:
        dead = ~bias.any(-1, keepdim=True)
        return bias | dead, dead
    dead = (bias == float("-inf")).all(-1, keepdim=True)
    return bias.masked_fill(dead, 0.0), dead


def cudnn_gives_nan(queries: int, keys: int, *, masked: bool) -> bool:
    """Whether cuDNN's gradients may be NaN at these lengths, where scores are very negative.

    Under a mask the half-filled last tile of 128 keys is not hidden (pytorch#196678); a single
    query has NaN in dk and dv (cudnn-frontend#1072). Both were reported on Hopper.
    """
    return queries == 1 or (masked and keys % 128 == 64)


BACKEND = Sdpa()
