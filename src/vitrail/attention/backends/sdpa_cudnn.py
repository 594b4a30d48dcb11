"""SDPA pinned to cuDNN's attention, on CUDA.

Limits as in torch 2.14, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp,
`can_use_cudnn_attention`; wider heads, which newer cuDNN takes on some GPUs, are left out. They are
its word, not our measurement, and so are the lengths at which gradients are NaN.
"""

from torch.nn.attention import SDPBackend

from vitrail.attention.backends import HALVES, Capability, Kernels, Request
from vitrail.attention.backends.sdpa import Sdpa, cudnn_gives_nan, pinned_to


class SdpaCudnn(Sdpa):
    name = "sdpa_cudnn"
    by_name_only = "its gradients have been NaN under masks (pytorch#196678)"
    pinned = SDPBackend.CUDNN_ATTENTION
    capabilities = {
        "cuda": Capability(
            dtypes=HALVES,
            bias_grad=False,
            max_width=128,
            multiple_of=dict.fromkeys(HALVES, 8),
            compute=(8, 0),
            deterministic=False,
        ),
    }

    def refuse(self, request: Request) -> list[str]:
        lacks = super().refuse(request)
        if self.capability(request) is None:
            return lacks
        if request.keys == 1:
            lacks.append("look at a single key")
        if 16 * request.dropout % 1:
            lacks.append(f"drop {request.dropout:g} of the weights (in steps of 1/16 only)")
        if request.dropout and request.queries == 1:
            lacks.append("drop weights of a single query")
        masked = bool(request.masks) or request.bias
        if request.backward and cudnn_gives_nan(request.queries, request.keys, masked=masked):
            lacks.append(
                "give gradients to a single query (NaN, cudnn-frontend#1072)"
                if request.queries == 1
                else f"give gradients under a mask of {request.keys} keys (NaN, pytorch#196678)"
            )
        return lacks

    def kernels(self, request: Request, *, compiled: bool = False) -> Kernels:
        return pinned_to("aten::_scaled_dot_product_cudnn_attention")


BACKEND = SdpaCudnn()
