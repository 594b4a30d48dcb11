"""SDPA pinned to torch's written-out kernel; halves are computed in fp32."""

from torch.nn.attention import SDPBackend

from vitrail.attention.backends import FUSED, Kernels, Request
from vitrail.attention.backends.sdpa import Sdpa


class SdpaMath(Sdpa):
    name = "sdpa_math"
    keeps_scores = True
    by_name_only = None
    pinned = SDPBackend.MATH

    def kernels(self, request: Request, *, compiled: bool = False) -> Kernels:
        if compiled:
            return Kernels(forbidden=FUSED)
        return Kernels(required=frozenset({"aten::_scaled_dot_product_attention_math"}))


BACKEND = SdpaMath()
