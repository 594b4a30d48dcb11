"""FlexAttention (Dong et al. 2024): masks and biases as rules, compiled by torch into the kernel.

Blocks of pairs in which nothing may be seen are never computed. On a CPU it computes forward alone,
and not in float64. The limits on CUDA are those of torch 2.14's source
(torch/nn/attention/flex_attention.py, torch/_inductor/kernel/flex); they are its word, not our
measurement. Compiling takes seconds for each new kind of call.
"""

import importlib.util
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache, reduce

import torch
import torch.nn.functional as F
from einops import reduce as pool
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, and_masks, flex_attention

from vitrail.attention import backends
from vitrail.attention.backends import HALVES, Backend, Capability, Kernels, Request
from vitrail.attention.grid import kept_per_grid
from vitrail.attention.mask import Mask, Predicate

BLOCK = 128  # queries and keys of a block; torch's own size
KINDS_OF_CALLS = 64  # that are compiled in one process before torch gives up


class Flex(Backend):
    name = "flex"
    by_name_only = "compiling it takes seconds for each new kind of call"
    capabilities = {
        "cpu": Capability(
            dtypes=HALVES | {torch.float32}, bias_grad=False, dropout=False, backward=False
        ),
        "cuda": Capability(
            dtypes=HALVES | {torch.float32},
            dropout=False,
            min_width=16,
            compute=(8, 0),
            deterministic=False,
        ),
    }

    def refuse(self, request: Request) -> list[str]:
        lacks = super().refuse(request)
        if request.device in self.capabilities and (tool := missing_tool(request.device)):
            lacks.append(f"be compiled without {tool}")
        return lacks

    def kernels(self, request: Request, *, compiled: bool = False) -> Kernels:
        if request.device == "cuda":
            return Kernels(required=frozenset({"triton_tem_fused_*flex_attention*"}))
        if compiled:
            return Kernels()
        # On a CPU its name is of the compiler's making, and what is not it has names of torch's.
        return Kernels(
            required=frozenset({"Torch-Compiled Region: *"}),
            forbidden=frozenset({"aten::bmm", "aten::_softmax", "aten::_safe_softmax"}),
        )

    def __call__(self, q, k, v, *, mask, bias, scale, dropout_p):
        traced = torch.compiler.is_compiling()  # inside another's graph, which takes this one in
        kernel = flex_attention if traced else _compiled
        if traced and q.device.type == "cpu":
            # torch 2.14 cannot build this kernel on values that the graph around it computes.
            tensors = {"valid": mask.valid, "allowed": mask.allowed}
            mask = replace(mask, **{n: _in_memory(t) for n, t in tensors.items() if t is not None})
            bias = None if bias is None else _in_memory(bias)
        added = None if bias is None else _adding(bias)
        blocks = block_mask(mask, q.shape[-2], k.shape[-2], q.device, cached=not traced)
        with backends.without_autocast(q.device.type):
            return kernel(q, k, v, score_mod=added, block_mask=blocks, scale=scale)


def how_much(visible: Tensor) -> Tensor:
    """(1|B, 1|h, 1|Nq, Nk) bool -> how much of each block of pairs may be seen, (1|B, 1|h, 1|blocks
    of queries, blocks of keys): 2 for all of it, 1 for some, 0 for nothing.

    Under two masks it is the lesser, where only the pairs could tell some from nothing.
    """
    queries, keys = visible.shape[-2:]
    high = 1 if queries == 1 else BLOCK
    ends, form = (0, -keys % BLOCK, 0, -queries % high), "b h (i m) (j n) -> b h i j"
    some = pool(F.pad(visible, ends, value=False), form, "any", m=high, n=BLOCK)
    every = pool(F.pad(visible, ends, value=True), form, "all", m=high, n=BLOCK)
    return some.int() + every.int()


def block_mask(
    mask: Mask, queries: int, keys: int, device: torch.device, *, cached: bool
) -> BlockMask | None:
    """The mask as lists of blocks and a rule for mixed ones; what a pattern gives may be cached."""
    if cached and mask.kinds == {"pattern"}:
        return _pattern_mask(mask.pattern, queries, keys, device)
    blocks, rules = [], []
    if (valid := mask.valid) is not None:
        blocks.append(how_much(valid[:, None, None, :]))
        rules.append(lambda b, h, q, k: valid[b, k])
    if (allowed := mask.allowed) is not None:
        blocks.append(how_much(allowed))
        rules.append(lambda b, h, q, k: _at(allowed, b, h, q, k))
    if (pattern := mask.pattern) is not None:
        blocks.append(_pattern_blocks(pattern, device))
        rules.append(lambda b, h, q, k: pattern.sees(q, k))
    if not blocks:
        return None
    down, across = (
        torch.arange(BLOCK, BLOCK + size, BLOCK, device=device) for size in (queries, keys)
    )
    seen = reduce(torch.minimum, blocks)
    # As torch has it, a block that reaches beyond the last query or key is a mixed one.
    every = (seen == 2) & (down[:, None] <= queries) & (across <= keys)
    return BlockMask.from_kv_blocks(
        *_ordered((seen > 0) & ~every),
        *_ordered(every),
        BLOCK_SIZE=BLOCK,
        mask_mod=and_masks(*rules),  # inside blocks that are mixed
        seq_lengths=(queries, keys),
    )


@lru_cache(maxsize=256)
def _pattern_mask(pattern: Predicate, queries: int, keys: int, device: torch.device) -> BlockMask:
    with torch.inference_mode(False):  # training may need it next
        return block_mask(Mask(pattern=pattern), queries, keys, device, cached=False)


@kept_per_grid
def _pattern_blocks(pattern: Predicate, device: torch.device) -> Tensor:
    return how_much(pattern.visible(device))


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks each row has, and which, those first; int32, as torch lists them."""
    counts = blocks.sum(-1, dtype=torch.int32)
    return counts, blocks.int().argsort(dim=-1, descending=True, stable=True).int()


def _adding(bias: Tensor) -> Callable[..., Tensor]:
    # A gradient is summed over the batch in the bias's own dtype, for which halves are too short.
    bias = bias.float() if bias.requires_grad else bias
    return lambda score, b, h, q, k: score + _at(bias, b, h, q, k)


def _at(tensor: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """One value of a (1|B, 1|h, Nq, Nk) tensor, whose axes of length 1 serve all."""
    samples, heads = tensor.shape[:2]
    return tensor[b if samples > 1 else 0 * b, h if heads > 1 else 0 * h, q, k]


def _compiled(q: Tensor, *args: Tensor, **kwargs) -> Tensor:
    # Past its limit torch runs the formula uncompiled, and quietly; with `fullgraph` it raises.
    with torch._dynamo.config.patch(recompile_limit=KINDS_OF_CALLS):
        return _kernel(q.device.type)(q, *args, **kwargs)


@cache
def _kernel(device: str) -> Callable[..., Tensor]:
    # A second length makes torch leave lengths open, and then its C++ does not compile (2.14).
    return torch.compile(flex_attention, fullgraph=True, dynamic=False if device == "cpu" else None)


@torch.library.custom_op("vitrail::in_memory", mutates_args=())
def _in_memory(tensor: Tensor) -> Tensor:
    """The same values, in memory by now: a compiler does not look inside this."""
    return tensor.clone()


@_in_memory.register_fake
def _(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor)


@torch.compiler.assume_constant_result
def missing_tool(device: str) -> str | None:
    """What this machine lacks to compile for a device type."""
    if device == "cuda":
        return None if importlib.util.find_spec("triton") else "Triton"
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        return "a processor with AVX2"
    compiler = os.environ.get("CXX") or ("cl" if os.name == "nt" else "g++")
    return None if shutil.which(compiler) else f"a C++ compiler ({compiler}, or what CXX names)"


BACKEND = Flex()
