"""Attention over packed tokens: samples of many lengths, end to end and without padding."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from vitrail.attention import backends
from vitrail.attention.attention import attend
from vitrail.attention.backends import Backend, Request
from vitrail.attention.mask import Mask
from vitrail.errors import UserError


def attend_packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor,
    max_seqlen: int | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    backend: str | Backend = "sdpa",
) -> Tensor:
    """softmax(q k^T * scale) v, in which each sample sees itself and no other.

    A backend with a kernel for packed tokens is called once, any other once for each length that
    occurs.

    Args:
        q: (total, h, d), as k.
        v: (total, h, d'), no wider than q and k.
        cu_seqlens: (B + 1,), int32 or int64, where each sample begins, and last the total; samples
            may be empty.
        max_seqlen: tokens of the longest sample, or more. Where it is given, a kernel for packed
            tokens is called without reading cu_seqlens, which is then trusted; otherwise the host
            reads it, and waits for a GPU.
        scale, dropout_p, backend: as for `attend`.

    Returns:
        (total, h, d').

    Raises:
        UserError: lengths that do not fit.
        Refused: a backend that cannot serve the call.
    """
    _check(q, k, v, cu_seqlens)
    kernel = backends.load(backend) if isinstance(backend, str) else backend
    one = (rearrange(tensor, "n h d -> 1 h n d") for tensor in (q, k, v))
    request = Request.of(*one, Mask(), None, dropout_p)
    capability = kernel.capability(request)
    in_one_call = capability is not None and capability.packed
    if max_seqlen is None or not in_one_call:
        begins = cu_seqlens.tolist()
        max_seqlen = _longest(begins, q.shape[0], max_seqlen)
    if max_seqlen == 0:
        return v.clone()
    if not in_one_call:
        return _by_length(q, k, v, begins, scale=scale, dropout_p=dropout_p, backend=kernel)

    request = replace(request, batch=len(cu_seqlens) - 1, queries=max_seqlen, keys=max_seqlen)
    width, widest = v.shape[-1], q.shape[-1]
    if width < widest:  # padding by nothing would copy
        v = F.pad(v, (0, widest - width))
    knobs = {"scale": widest**-0.5 if scale is None else scale, "dropout_p": dropout_p}
    starts = cu_seqlens.to(q.device, torch.int32).contiguous()
    kernel = backends.resolve(request, kernel)
    out = kernel.packed(q, k, v, cu_seqlens=starts, max_seqlen=max_seqlen, **knobs)
    return out[..., :width]


def _by_length(q: Tensor, k: Tensor, v: Tensor, begins: list[int], **options) -> Tensor:
    """One call for each length, its samples a batch."""
    starts = defaultdict(list)
    for begin, end in pairwise(begins):
        if end > begin:
            starts[end - begin].append(begin)
    places, outs = [], []
    for length, first in starts.items():
        within = torch.arange(length, device=q.device)
        place = torch.tensor(first, device=q.device)[:, None] + within  # (samples, length)
        batch = (rearrange(tensor[place], "b n h d -> b h n d") for tensor in (q, k, v))
        outs.append(rearrange(attend(*batch, **options), "b h n d -> (b n) h d"))
        places.append(place.flatten())
    return torch.cat(outs).index_select(0, torch.cat(places).argsort())


def _check(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> None:
    shapes = [tuple(tensor.shape) for tensor in (q, k, v)]
    if any(len(shape) != 3 or shape[:2] != shapes[0][:2] for shape in shapes):
        raise UserError(
            f"q, k and v have shapes {', '.join(map(str, shapes))}; packed tokens are "
            "(total, heads, width), as many and with as many heads in each"
        )
    if cu_seqlens.dtype not in (torch.int32, torch.int64) or cu_seqlens.ndim != 1:
        raise UserError(
            f"cu_seqlens is {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}; it must be "
            "torch.int32 or torch.int64 of shape (samples + 1,)"
        )


def _longest(begins: list[int], total: int, told: int | None) -> int:
    """Tokens of the longest sample, or as many as told; UserError where begins do not fit."""
    if begins[:1] != [0] or begins[-1] != total or begins != sorted(begins):
        raise UserError(
            f"cu_seqlens must begin with 0, never fall and end with the {total} tokens there are, "
            f"got {begins}; lengths become begins by `F.pad(lengths.cumsum(0), (1, 0))`"
        )
    longest = max((end - begin for begin, end in pairwise(begins)), default=0)
    if told is not None and told < longest:
        raise UserError(
            f"max_seqlen must be at least the longest sample's {longest} tokens, got {told}; "
            "or leave it out"
        )
    return longest if told is None else told
