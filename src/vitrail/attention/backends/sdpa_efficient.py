"""SDPA pinned to memory-efficient attention (Rabe & Staats 2021): the kernel of xformers, on CUDA.

The fused kernel that takes every mask, fp32, dropout and a learned bias. torch pads the rows of a
mask as the kernel wants them (aten/src/ATen/native/transformers/attention.cpp, `preprocess_mask`).
Limits as in cuda/sdp_utils.cpp beside it, `can_use_mem_efficient_attention` of torch 2.14; they are
its word, not our measurement.
"""

import torch
from torch.nn.attention import SDPBackend

from vitrail.attention.backends import HALVES, Capability, Kernels, Request
from vitrail.attention.backends.sdpa import Sdpa, pinned_to


class SdpaEfficient(Sdpa):
    name = "sdpa_efficient"
    by_name_only = None
    pinned = SDPBackend.EFFICIENT_ATTENTION
    capabilities = {
        "cuda": Capability(
            dtypes=HALVES | {torch.float32},
            multiple_of={torch.float32: 4, torch.bfloat16: 8, torch.float16: 8},
            compute=(5, 0),
            deterministic=False,
        ),
    }

    def refuse(self, request: Request) -> list[str]:
        lacks = super().refuse(request)
        if request.compute is not None:
            if request.compute < (8, 0) and request.dtype == torch.bfloat16:
                lacks.append("compute in bfloat16 below compute capability 8.0")
            if request.bias_grad and not request.backward:
                # Whether the kernel keeps what backward needs is decided by q, k and v alone.
                lacks.append("give the gradient of a bias alone, without that of q, k or v")
        return lacks

    def kernels(self, request: Request, *, compiled: bool = False) -> Kernels:
        return pinned_to("aten::_scaled_dot_product_efficient_attention")


BACKEND = SdpaEfficient()
