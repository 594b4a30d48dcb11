"""Stand-ins for the flash-attn package, with its published signatures, that compute on any device.

FA2: flash_attn/flash_attn_interface.py of flash-attn 2.8.3. FA3: hopper/flash_attn_interface.py of
the same repository. FA4: flash_attn/cute/interface.py of flash-attn-4 4.0.0b36. They compute in
float64, sample by sample, and are as careless as kernels are about what is nobody's: tokens of a
packed buffer that belong to no sample get NaN for an output and for a gradient.
"""

import importlib.util
import sys
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from vitrail.attention.backends import flash_attn

from .oracle import attention

MODULES = {"FA2": "flash_attn", "FA3": "flash_attn_interface", "FA4": "flash_attn.cute"}
DISTRIBUTIONS = {"FA2": "flash-attn", "FA3": "flash-attn-3", "FA4": "flash-attn-4"}
VERSIONS = {"FA2": "2.8.3", "FA3": "3.0.0b1", "FA4": "4.0.0b36"}


@dataclass
class Stub:
    """One generation, and the arguments of each call that it got by their names."""

    name: str
    calls: list[dict[str, Any]] = field(default_factory=list)

    def functions(self) -> dict[str, Any]:
        return functions(self.name, self.calls)


def install(monkeypatch, *names: str) -> dict[str, Stub]:
    """Let these generations be installed and no other, whatever this machine has."""
    stubs = {name: Stub(name) for name in names}
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
        vars(module).update(stubs[name].functions())
    find = importlib.util.find_spec
    hidden = {module for module in MODULES.values() if module not in sys.modules}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in hidden else find(name)
    )
    told = {DISTRIBUTIONS[name]: VERSIONS[name] for name in names}
    monkeypatch.setattr(flash_attn, "_version", told.get)
    forget(monkeypatch)
    return stubs


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
    whole, varlen = (parameters.split() for parameters in PARAMETERS[name])

    def answer(out: Tensor) -> Any:
        return (out, None) if name == "FA4" else out  # with the log-sum-exp, or None

    def note(parameters: list[str], args: tuple, given: dict[str, Any]) -> dict[str, Any]:
        call = dict(zip(parameters, args, strict=False)) | given
        assert len(args) + len(given) == len(call.keys() & set(parameters)), "unknown or twice"
        calls.append(call)
        return call

    def flash_attn_func(*args, **given):
        call = note(whole, args, given)
        return answer(dense(call["q"], call["k"], call["v"], call["softmax_scale"]))

    def flash_attn_varlen_func(*args, **given):
        call = note(varlen, args, given)
        lengths = (call[f"{what}_{of}"] for what in ("cu_seqlens", "max_seqlen") for of in "qk")
        qkv = (call["q"], call["k"], call["v"])
        return answer(Varlen.apply(*qkv, *lengths, call["softmax_scale"]))

    return {"flash_attn_func": flash_attn_func, "flash_attn_varlen_func": flash_attn_varlen_func}


def dense(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attention on (B, N, h, d), halves alone, as the kernels want them."""
    for tensor in (q, k, v):
        check(tensor, axes=4)
    out = attention(*(tensor.transpose(1, 2) for tensor in (q, k, v)), scale=scale)
    return out.transpose(1, 2).to(q.dtype)


class Varlen(torch.autograd.Function):
    """Attention of each sample's queries to its keys on packed tokens, (total, h, d)."""

    @staticmethod
    def forward(ctx, q, k, v, begins_q, begins_k, longest_q, longest_k, scale):
        for tensor in (q, k, v):
            check(tensor, axes=3)
        assert begins_q.shape == begins_k.shape
        for begins, longest, total in (
            (begins_q, longest_q, len(q)),
            (begins_k, longest_k, len(k)),
        ):
            assert begins.dtype == torch.int32
            assert begins.is_contiguous()
            assert type(longest) is int
            assert begins[0] == 0
            assert begins[-1] <= total
            assert begins.diff().max() <= longest
        ctx.save_for_backward(q, k, v)
        ctx.given = (begins_q.tolist(), begins_k.tolist(), scale)
        out = torch.full_like(q, float("nan"))
        for (at_q, one_q), (_, one_k), (_, one_v) in samples(q, k, v, *ctx.given[:2]):
            out[at_q] = single(one_q, one_k, one_v, scale).to(q.dtype)
        return out

    @staticmethod
    def backward(ctx, towards):
        tensors = ctx.saved_tensors
        grads = [torch.full_like(tensor, float("nan")) for tensor in tensors]
        for parts in samples(*tensors, *ctx.given[:2]):
            with torch.enable_grad():
                leaves = [part.double().requires_grad_() for _, part in parts]
                out = single(*leaves, ctx.given[2])
            found = torch.autograd.grad(out, leaves, towards[parts[0][0]].double())
            for grad, (at, _), part in zip(grads, parts, found, strict=True):
                grad[at] = part.to(grad.dtype)
        return *grads, None, None, None, None, None


def samples(q: Tensor, k: Tensor, v: Tensor, begins_q: list[int], begins_k: list[int]):
    """The place of each sample that has keys in q, k and v, with what is there."""
    for number in range(len(begins_q) - 1):
        at_q = slice(begins_q[number], begins_q[number + 1])
        at_k = slice(begins_k[number], begins_k[number + 1])
        if begins_k[number + 1] > begins_k[number]:
            yield (at_q, q[at_q]), (at_k, k[at_k]), (at_k, v[at_k])


def single(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attention of one sample, (N, h, d), in float64."""
    heads_first = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
    return attention(*heads_first, scale=scale)[0].transpose(0, 1)


def check(tensor: Tensor, *, axes: int) -> None:
    assert tensor.dtype in (torch.float16, torch.bfloat16)
    assert tensor.ndim == axes
    assert tensor.stride(-1) == 1
    assert tensor.shape[-1] % 8 == 0
    assert tensor.shape[-1] <= 256
