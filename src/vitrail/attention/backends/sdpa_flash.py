"""SDPA pinned to flash attention: torch's own on CPU, FlashAttention-2 (Dao 2023) on CUDA.

On CPU it takes masks and biases, but neither drops weights nor gives a bias gradient; on CUDA it
takes no mask at all, and some widths cannot be trained on consumer GPUs (torch 2.14,
aten/src/ATen/native/transformers/sdp_utils_cpp.cpp and cuda/sdp_utils.cpp).
"""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

from vitrail.attention.backends import HALVES, Capability, Kernels, Request
from vitrail.attention.backends.sdpa import Sdpa, pinned_to

# What every FlashAttention can do.
ON_CUDA = Capability(
    dtypes=HALVES,
    masks=frozenset(),
    bias=False,
    max_width=256,
    compute=(8, 0),
    packed=True,
    deterministic=False,
)


class SdpaFlash(Sdpa):
    name = "sdpa_flash"
    by_name_only = None
    pinned = SDPBackend.FLASH_ATTENTION
    capabilities = {
        "cpu": Capability(dropout=False, bias_grad=False),
        "cuda": ON_CUDA,
    }

    def refuse(self, request: Request) -> list[str]:
        lacks = super().refuse(request)
        compute, width = request.compute, request.width
        trained = width <= 192 or (width > 224 and not request.dropout)
        if compute and on_consumer_gpu(compute) and request.backward and not trained:
            lacks.append(
                "compute gradients at head width {}{} on compute capability {}.{}".format(
                    width, " with dropout" if request.dropout else "", *compute
                )
            )
        return lacks

    def kernels(self, request: Request, *, compiled: bool = False) -> Kernels:
        suffix = "_for_cpu" if request.device == "cpu" else ""
        return pinned_to(f"aten::_scaled_dot_product_flash_attention{suffix}")

    def packed(self, q, k, v, *, cu_seqlens, max_seqlen, scale, dropout_p):
        # Not torch.nn.attention.varlen: on Hopper and Blackwell that one may pick cuDNN.
        width = q.shape[-1]
        if width % 8:
            q, k, v = (F.pad(tensor, (0, -width % 8)) for tensor in (q, k, v))
        lengths, causal, debug = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen), False, False
        out, *_ = torch.ops.aten._flash_attention_forward(
            q, k, v, *lengths, dropout_p, causal, debug, scale=scale
        )
        return out[..., :width]


def on_consumer_gpu(compute: tuple[int, int]) -> bool:
    """Whether it has little shared memory: sm86 to sm89, sm120 and sm121."""
    return (8, 6) <= compute <= (8, 9) or (12, 0) <= compute <= (12, 1)


BACKEND = SdpaFlash()
