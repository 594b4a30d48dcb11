"""SDPA pinned to flash attention: torch's own on CPU, FlashAttention-2 (Dao 2023) on CUDA.

On CPU it takes masks and biases, but neither drops weights nor gives a bias gradient; on CUDA it
takes no mask at all (torch 2.14, aten/src/ATen/native/transformers/sdp_utils_cpp.cpp and
cuda/sdp_utils.cpp).
"""

from torch.nn.attention import SDPBackend

from vitrail.attention.backends import HALVES, Capability, Kernels, Request
from vitrail.attention.backends.sdpa import Sdpa


class SdpaFlash(Sdpa):
    name = "sdpa_flash"
    by_name_only = None
    pinned = SDPBackend.FLASH_ATTENTION
    capabilities = {
        "cpu": Capability(dropout=False, bias_grad=False),
        "cuda": Capability(
            dtypes=HALVES,
            masks=frozenset(),
            bias=False,
            max_width=256,
            compute=(8, 0),
            deterministic=False,
        ),
    }

    def kernels(self, request: Request, *, compiled: bool = False) -> Kernels:
        suffix = "_for_cpu" if request.device == "cpu" else ""
        return Kernels(
            required=frozenset({f"aten::_scaled_dot_product_flash_attention{suffix}"}),
            forbidden=frozenset({"aten::_scaled_dot_product_attention_math"}),
        )


BACKEND = SdpaFlash()
