"""torch's scaled_dot_product_attention, the kernel left to torch or pinned by a sibling file."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitrail.attention.backends import EVERYWHERE, Backend, Capability, Kernels, Request


class Sdpa(Backend):
    """`pinned` is the one kernel that may run; None leaves the choice to torch."""

    name = "sdpa"
    by_name_only = "torch picks a kernel for every call"
    pinned: SDPBackend | None = None
    capabilities = {EVERYWHERE: Capability()}

    def kernels(self, request: Request, *, compiled: bool = False) -> Kernels:
        if compiled:  # taken apart into whichever kernel torch chose
            return Kernels()
        return Kernels(required=frozenset({"aten::scaled_dot_product_attention"}))

    def __call__(self, q, k, v, *, mask, bias, scale, dropout_p):
        bias = mask.additive(bias, q.dtype, q.device)
        if bias is not None and not torch.is_grad_enabled():
            # Flash on CPU refuses a learned bias even where no gradient is recorded.
            bias = bias.detach()
        # Entered here, not around the model: outside a compiled graph it does not force the kernel.
        with nullcontext() if self.pinned is None else sdpa_kernel(self.pinned):
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=bias, dropout_p=dropout_p, scale=scale
            )


BACKEND = Sdpa()
