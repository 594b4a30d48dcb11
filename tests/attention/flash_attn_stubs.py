"""Stand-ins for the flash-attn package, with its published signatures, that compute on any device.

FA2: flash_attn/flash_attn_interface.py of flash-attn 2.8.3. FA3: hopper/flash_attn_interface.py of
the same repository. FA4: flash_attn/cute/interface.py of flash-attn-4 4.0.0b36. They compute in
float64, sample by sample, and are as careless as kernels are about what is nobody's: tokens of a
packed buffer that belong to no sample get NaN for an output and for a gradient.
"""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from vitrail.attention import backends
from vitrail.attention.backends import flash_attn

from .oracle import attention

MODULES = {"FA2": "flash_attn", "FA3": "flash_attn_interface", "FA4": "flash_attn.cute"}
DISTRIBUTIONS = {"FA2": "flash-attn", "FA3": "flash-attn-3", "FA4": "flash-attn-4"}
VERSIONS = {"FA2": "2.8.3", "FA3": "3.0.0b1", "FA4": "4.0.0b36"}


def install(monkeypatch, *names: str) -> list[dict[str, Any]]:
    """Let these generations be installed and no other; returns what their calls will be given."""
    calls = []
    for module in MODULES.values():
        monkeypatch.delitem(sys.modules, module, raising=False)
    for name in names:
        # FA4 alone leaves `flash_attn` a folder without a file of its own.
        for module in {"flash_attn"} & {MODULES[name].partition(".")[0]} | {MODULES[name]}:
            if module not in sys.modules:
                monkeypatch.setitem(sys.modules, module, ModuleType(module))
                sys.modules[module].__spec__ = ModuleSpec(module, None)
        module = sys.modules[MODULES[name]]
        module.__spec__.origin = "stub"
        vars(module).update(functions(name, calls))
    find = importlib.util.find_spec
    hidden = {module for module in MODULES.values() if module not in sys.modules}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in hidden else find(name)
    )
    told = {DISTRIBUTIONS[name]: VERSIONS[name] for name in names}
    monkeypatch.setattr(flash_attn, "_version", told.get)
    forget(monkeypatch)
    return calls


def install_on_a_hopper(monkeypatch, name: str) -> list[dict[str, Any]]:
    """One generation, and tensors on a CPU that pass for those of a Hopper."""
    cls = flash_attn.FlashAttn
    monkeypatch.setattr(cls, "capabilities", {"cpu": cls.capabilities["cuda"]})
    monkeypatch.setattr(backends, "compute_capability", lambda _: (9, 0))
    return install(monkeypatch, name)


def forget(monkeypatch) -> None:
    """What has been found out about installed packages is found out again, and not kept."""
    monkeypatch.delenv(flash_attn.FORCED, raising=False)
    monkeypatch.setattr(flash_attn, "_modules", {})


# The parameters of `flash_attn_func` and `flash_attn_varlen_func`, in their order.
PARAMETERS = {
    "FA2": (
        """q k v dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic
        return_attn_probs""",
        """q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p softmax_scale causal
        window_size softcap alibi_slopes deterministic return_attn_probs block_table""",
    ),
    "FA3": (
        """q k v softmax_scale causal qv q_descale k_descale v_descale window_size attention_chunk
        softcap num_splits pack_gqa deterministic sm_margin return_attn_probs""",
        """q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k seqused_q seqused_k
        softmax_scale causal qv q_descale k_descale v_descale window_size attention_chunk softcap
        num_splits pack_gqa deterministic sm_margin return_attn_probs""",
    ),
    "FA4": (
        """q k v qv gather_kv_indices softmax_scale causal window_size learnable_sink softcap
        num_splits pack_gqa deterministic score_mod score_mod_bwd mask_mod aux_tensors aux_scalars
        block_sparse_tensors block_sparse_tensors_bwd return_lse gather_bwd_recompute_p
        gather_bwd_token_chunk""",
        """q k v qv cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k min_seqlen_k seqused_q
        seqused_k gather_kv_indices page_table softmax_scale causal window_size learnable_sink
        softcap num_splits pack_gqa deterministic score_mod score_mod_bwd mask_mod
        block_sparse_tensors aux_tensors aux_scalars return_lse scheduler_metadata
        seqlen_k_per_split disable_scheduler_metadata gather_bwd_recompute_p
        gather_bwd_token_chunk""",
    ),
}


def functions(name: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    """Both functions of a generation; they append the arguments of each call to `calls`."""

    def stub(parameters: str, compute):
        def function(*args, **given):
            call = dict(zip(parameters.split(), args, strict=False)) | given
            known = call.keys() & set(parameters.split())
            assert len(args) + len(given) == len(known), "unknown or twice"
            calls.append(call)
            out = compute(call)
            return (out, None) if name == "FA4" else out  # with the log-sum-exp, or None

        return function

    return {
        function: stub(parameters, compute)
        for function, parameters, compute in zip(
            flash_attn.FUNCTIONS, PARAMETERS[name], (dense, varlen), strict=True
        )
    }


def dense(call: dict[str, Any]) -> Tensor:
    """Attention on (B, N, h, d), halves alone, as the kernels want them."""
    q, k, v = checked(call, axes=4)
    out = attention(*(x.transpose(1, 2) for x in (q, k, v)), scale=call["softmax_scale"])
    return out.transpose(1, 2).to(q.dtype)


def varlen(call: dict[str, Any]) -> Tensor:
    """Attention of each sample's queries to its keys on packed tokens, (total, h, d)."""
    q, k, v = tensors = [x.clone() for x in checked(call, axes=3)]
    begins = {}
    for of, tensor in (("q", q), ("k", k)):
        own, longest = call[f"cu_seqlens_{of}"], call[f"max_seqlen_{of}"]
        assert own.dtype == torch.int32
        assert own.is_contiguous()
        assert type(longest) is int
        assert own[0] == 0
        assert own[-1] <= len(tensor)
        assert own.diff().max() <= longest
        begins[of] = own.tolist()
    out = torch.full_like(q, float("nan"))
    nobodys = [torch.ones(len(x), 1, 1, dtype=torch.bool) for x in tensors]
    spans = ([slice(*pair) for pair in pairwise(begins[of])] for of in "qk")
    for at_q, at_k in zip(*spans, strict=True):
        if at_k.stop > at_k.start:
            parts = q[at_q], k[at_k], v[at_k]
            heads_first = (part.transpose(0, 1)[None] for part in parts)
            one = attention(*heads_first, scale=call["softmax_scale"])[0]
            out[at_q] = one.transpose(0, 1).to(q.dtype)
            for unused, at in zip(nobodys, (at_q, at_k, at_k), strict=True):
                unused[at] = False
    for tensor, unused in zip(tensors, nobodys, strict=True):
        if tensor.requires_grad:
            tensor.register_hook(lambda grad, unused=unused: grad.masked_fill(unused, float("nan")))
    return out


def checked(call: dict[str, Any], *, axes: int) -> list[Tensor]:
    tensors = [call[name] for name in "qkv"]
    for tensor in tensors:
        assert tensor.dtype in (torch.float16, torch.bfloat16)
        assert tensor.ndim == axes
        assert tensor.stride(-1) == 1
        assert tensor.shape[-1] % 8 == 0
        assert tensor.shape[-1] <= 256
    return tensors
