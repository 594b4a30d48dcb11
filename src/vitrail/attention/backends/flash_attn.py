"""The flash-attn package on CUDA: FlashAttention 2 (Dao 2023), 3 (Shah et al. 2024) or 4.

What is installed and what the GPU is decide which of them runs, unless the environment variable
VITRAIL_FLASH_ATTN names one. Signatures and limits are those of the sources: flash-attn 2.8.3
(flash_attn/flash_attn_interface.py, csrc/flash_attn/flash_api.cpp, README.md), FA3 in the same
repository (hopper/flash_attn_interface.py, flash_api.cpp), and flash-attn-4 4.0.0b36
(flash_attn/cute/interface.py). They are its word, not our measurement.
"""

import importlib
import importlib.util
import os
from dataclasses import dataclass, replace
from importlib import metadata
from types import ModuleType

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from vitrail.attention.backends import HALVES, Backend, Kernels, Request
from vitrail.attention.backends.sdpa_flash import ON_CUDA, on_consumer_gpu
from vitrail.attention.mask import Mask

FORCED = "VITRAIL_FLASH_ATTN"
FUNCTIONS = ("flash_attn_func", "flash_attn_varlen_func")
ABSENT = "run without the flash-attn package (pip install 'vitrail[flash]')"


@dataclass(frozen=True)
class Generation:
    """One FlashAttention and where it lives.

    majors: compute capabilities that it runs on, by their first number. operator: its forward pass
    as a profiler names it; in_graphs: under torch.compile too.
    """

    name: str
    module: str
    distribution: str
    majors: frozenset[int]
    operator: str
    dropout: bool = False
    in_graphs: bool = False

    def installed(self) -> bool:
        """Found out without importing anything."""
        package, _, inner = self.module.partition(".")
        if inner:  # FA4 shares a folder with FA2, which has had an early copy of it
            return _version(self.distribution) is not None
        spec = importlib.util.find_spec(package)
        return spec is not None and spec.origin is not None

    def lacks(
        self, compute: tuple[int, int], width: int, *, dropout: bool, backward: bool
    ) -> list[str]:
        """What this one cannot do of what the backend can."""
        gpu = "compute capability {}.{}".format(*compute)
        lacks = []
        if compute[0] not in self.majors:
            lacks.append(f"run {self.name} on {gpu}")
        if dropout and not self.dropout:
            lacks.append(f"drop attention weights with {self.name}")
        if self.name == "FA4" and compute[0] > 9 and 128 < width < 256:
            lacks.append(f"take head width {width} with FA4 on {gpu} (at most 128, or 256)")
        if self.name == "FA2" and dropout and backward and width > 192 and on_consumer_gpu(compute):
            lacks.append(f"train head width {width} with dropout on {gpu}")
        return lacks


FA3 = Generation(
    "FA3", "flash_attn_interface", "flash-attn-3", frozenset({9}), operator="flash_attn_3::fwd"
)
FA4 = Generation(
    "FA4",
    "flash_attn.cute",
    "flash-attn-4",
    frozenset({9, 10, 11}),
    operator="FlashAttn*Func",  # of autograd: its kernels are no operators of torch's
)
FA2 = Generation(
    "FA2",
    "flash_attn",
    "flash-attn",
    frozenset({8, 9, 10, 11, 12}),
    operator="flash_attn::_flash_attn_*forward",
    dropout=True,
    in_graphs=True,
)
# By name. The first that is installed, imports and serves the request is the one.
GENERATIONS = {one.name: one for one in (FA3, FA4, FA2)}


class FlashAttn(Backend):
    name = "flash_attn"
    capabilities = {
        "cuda": replace(
            ON_CUDA, masks=frozenset({"padding"}), multiple_of=dict.fromkeys(HALVES, 8)
        ),
    }

    def refuse(self, request: Request) -> list[str]:
        lacks = super().refuse(request)
        if request.compute is not None and self.capability(request) is not None:
            return lacks + list(_chosen(request)[1])
        # There is no GPU to choose for, so nothing is imported to find out more.
        there = any(one.installed() for one in GENERATIONS.values())
        return lacks if there else [*lacks, ABSENT]

    def variant(self, request: Request) -> str | None:
        if self.refuse(request):
            return None
        one = GENERATIONS[_chosen(request)[0]]
        version = _version(one.distribution) or getattr(_load(one), "__version__", "unknown")
        return f"{one.name} {version}"

    def kernels(self, request: Request, *, compiled: bool = False) -> Kernels:
        generation = GENERATIONS[_chosen(request)[0]]
        if compiled and not generation.in_graphs:
            return Kernels()
        return Kernels(required=frozenset({generation.operator}))

    def __call__(self, q, k, v, *, mask, bias, scale, dropout_p):
        name, _ = _chosen(Request.of(q, k, v, mask, bias, dropout_p))
        q, k, v = (rearrange(tensor, "b h n d -> b n h d") for tensor in (q, k, v))
        if mask.valid is None:
            out = _run(name, q, k, v, softmax_scale=scale, dropout_p=dropout_p)
        else:
            out = _padded(name, q, k, v, mask.valid, softmax_scale=scale, dropout_p=dropout_p)
        return rearrange(out, "b n h d -> b h n d")

    def packed(self, q, k, v, *, cu_seqlens, max_seqlen, scale, dropout_p):
        one = (rearrange(tensor, "n h d -> 1 h n d") for tensor in (q, k, v))
        name, _ = _chosen(Request.of(*one, Mask(), None, dropout_p))
        begins, longest = (cu_seqlens, cu_seqlens), (max_seqlen, max_seqlen)
        return _run(name, q, k, v, begins, longest, softmax_scale=scale, dropout_p=dropout_p)


def _padded(name: str, q: Tensor, k: Tensor, v: Tensor, valid: Tensor, **options) -> Tensor:
    """Attention to the real keys of each sample; q, k, v: (B, N, h, d), valid: (B, keys).

    Queries stay where they are and keys are packed, the real ones first, behind which what is left
    of their buffer belongs to no sample: so no shape depends on the mask's values, and the host
    waits for none of them.
    """
    batch, queries = q.shape[:2]
    # A sample without a real key looks at its keys, all 0, and its output is made 0 afterwards.
    dead = ~valid.any(1, keepdim=True)
    seen = valid | dead
    order = seen.flatten().int().argsort(descending=True, stable=True)  # keeps samples in order
    # Nobody fills the gradient of the keys that are left over: masked_fill makes it 0.
    k, v = (tensor.masked_fill(~valid[..., None, None], 0.0) for tensor in (k, v))
    k, v = (rearrange(one, "b n h d -> (b n) h d").index_select(0, order) for one in (k, v))
    every = torch.arange(0, (batch + 1) * queries, queries, dtype=torch.int32, device=q.device)
    begins = every, F.pad(seen.sum(1).cumsum(0), (1, 0)).int()
    longest = queries, valid.shape[1]
    out = _run(name, rearrange(q, "b n h d -> (b n) h d"), k, v, begins, longest, **options)
    return rearrange(out, "(b n) h d -> b n h d", b=batch).masked_fill(dead[..., None, None], 0.0)


def _run(name: str, q, k, v, begins=None, longest=None, *, dropout_p: float, **options) -> Tensor:
    """One call on (B, N, h, d), or on packed tokens where samples begin, of queries and of keys."""
    function, module = FUNCTIONS[begins is not None], _modules[name]
    if begins is not None:
        options["cu_seqlens_q"], options["cu_seqlens_k"] = begins
        options["max_seqlen_q"], options["max_seqlen_k"] = longest
    if GENERATIONS[name].dropout:
        options["dropout_p"] = dropout_p
    deterministic = torch.are_deterministic_algorithms_enabled()
    out = getattr(module, function)(q, k, v, causal=False, deterministic=deterministic, **options)
    return out[0] if isinstance(out, tuple) else out  # FA4 and early FA3 add the log-sum-exp


def _chosen(request: Request) -> tuple[str | None, tuple[str, ...]]:
    """The name of the generation for a request, or None and why there is none."""
    return _choose(request.compute, request.width, request.dropout > 0, request.backward)


@torch.compiler.assume_constant_result  # of constants: a request that is traced is none
def _choose(
    compute: tuple[int, int], width: int, dropout: bool, backward: bool
) -> tuple[str | None, tuple[str, ...]]:
    forced, lacks = os.environ.get(FORCED, ""), []
    if forced and forced not in GENERATIONS:
        return None, (f"run {FORCED}={forced} (there are {', '.join(sorted(GENERATIONS))})",)
    for one in [GENERATIONS[forced]] if forced else GENERATIONS.values():
        if isinstance(found := _load(one), str):
            lacks.append(f"import {one.module} ({found})")
        elif found is not None:
            why = one.lacks(compute, width, dropout=dropout, backward=backward)
            if not why:
                return one.name, ()
            lacks += why
    return None, tuple(lacks or [f"run {forced}, which is not installed" if forced else ABSENT])


# What has been imported, by generation: None where it is absent, the reason where it is broken.
_modules: dict[str, ModuleType | str | None] = {}


def _load(generation: Generation) -> ModuleType | str | None:
    if generation.name not in _modules:  # looking for a package takes longer than attention
        try:
            found = importlib.import_module(generation.module) if generation.installed() else None
            for function in FUNCTIONS if found else ():
                getattr(found, function)
        except (ImportError, OSError, RuntimeError, AttributeError) as error:
            # Built for another torch or CUDA, it fails in any of these ways.
            found = str(error).partition("\n")[0] or type(error).__name__
        _modules[generation.name] = found
    return _modules[generation.name]


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


BACKEND = FlashAttn()
