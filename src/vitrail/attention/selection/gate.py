"""Equality before speed: a backend against the formula in float64, forward and gradients.

The rule is that of kernel authors (flash-attention's tests compare so): what a kernel computes in a
low precision may be about as far from the exact result as the plain formula in that precision is.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.attention.backends import Backend, Request
from vitrail.attention.backends.reference import attention_weights
from vitrail.attention.selection.sample import Sample
from vitrail.errors import UserError

# The error that is allowed beyond the formula's own: the largest difference for what is computed in
# 32 bits or more, the L2 norm of the difference over that of the exact tensor for halves.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
FACTOR = 2.0
LONGEST = 4096


class FailedGate(UserError):
    """A backend computes something else than attention; the message names the worst tensor."""


@dataclass(frozen=True)
class GateResult:
    """How far a backend is from float64, for each tensor (out, dq, dk, dv, dbias).

    largest: the largest difference. relative: the L2 norm of the difference over that of the exact
    tensor. Both are infinite where a value is not finite. allowed: how far it may be, in `relative`
    for halves and in `largest` for others. seconds: what finding out took.
    """

    largest: Mapping[str, float]
    relative: Mapping[str, float]
    allowed: Mapping[str, float]
    halves: bool
    seconds: float

    @property
    def errors(self) -> Mapping[str, float]:
        """Of the two measures the one that decides."""
        return self.relative if self.halves else self.largest

    @property
    def worst(self) -> str:
        """The tensor that comes nearest to what is allowed, or passes it by most."""
        return max(self.errors, key=lambda name: self.errors[name] / self.allowed[name])

    @property
    def share(self) -> float:
        """How much of what is allowed the worst tensor uses up; more than 1 is a failure."""
        return self.errors[self.worst] / self.allowed[self.worst]

    @property
    def passed(self) -> bool:
        return self.share <= 1

    def __str__(self) -> str:
        """`dq is 2.0e-03 from float64 and 1.0e-05 is allowed`, of the worst tensor."""
        error, allowed = self.errors[self.worst], self.allowed[self.worst]
        return f"{self.worst} is {error:.1e} from float64 and {allowed:.1e} is allowed"


@dataclass(frozen=True)
class Exact:
    """A sample of a request and what the formula makes of it, which all its backends share.

    exact, plain: the tensors in float64 and in the request's dtype, by name. seconds: their time.
    """

    sample: Sample
    exact: Mapping[str, Tensor]
    plain: Mapping[str, Tensor]
    seconds: float

    @classmethod
    def of(cls, request: Request) -> "Exact":
        """Heads, width, tokens, dtype, masks and bias are the request's own; see `_sample`."""
        start = time.perf_counter()
        sample = _sample(request)
        exact, plain = _by_head(sample, torch.float64), _by_head(sample, request.dtype)
        return cls(sample, exact, plain, time.perf_counter() - start)


def measure_error(backend: Backend, known: Exact) -> GateResult:
    """How far the backend is from float64 on that sample, forward and backward."""
    start = time.perf_counter()
    dtype, halves = known.sample.q.dtype, known.sample.q.dtype.itemsize == 2
    actual = _tensors(known.sample, known.sample.forward(backend))
    found = {name: _differences(tensor, known.exact[name]) for name, tensor in actual.items()}
    plain = {name: _differences(known.plain[name], known.exact[name]) for name in actual}
    return GateResult(
        largest={name: largest for name, (largest, _) in found.items()},
        relative={name: relative for name, (_, relative) in found.items()},
        allowed={name: TOLERANCE[dtype] + FACTOR * both[halves] for name, both in plain.items()},
        halves=halves,
        seconds=known.seconds + time.perf_counter() - start,
    )


def prove(request: Request, backend: Backend) -> GateResult:
    """What `measure_error` found of a backend that passes, or FailedGate."""
    result = measure_error(backend, Exact.of(request))
    if not result.passed:
        raise FailedGate(
            f"backend={backend.name} fails the gate: {result} "
            f"(heads {request.heads}, tokens {request.keys}, width {request.width}); "
            "use another backend, or gate=off to go on at your own risk"
        )
    return result


def formula(one: Sample) -> Tensor:
    """Attention as anyone would write it, every step rounded to the sample's dtype."""
    if one.q.dtype == torch.float64:
        return (
            attention_weights(one.q, one.k, mask=one.mask, bias=one.bias, scale=one.scale) @ one.v
        )
    scores = (one.q * one.scale) @ one.k.transpose(-2, -1)
    if one.bias is not None:
        scores = scores + one.bias
    visible = one.mask.visible(one.q.device)
    if visible is None:
        return F.softmax(scores, dim=-1) @ one.v
    dead = ~visible.any(-1, keepdim=True)
    scores = scores.masked_fill(~(visible | dead), float("-inf"))
    return (F.softmax(scores, dim=-1) @ one.v).masked_fill(dead, 0.0)


def _sample(request: Request) -> Sample:
    """Three samples, of which padding leaves one whole, one half and one empty.

    Of longer calls the first `LONGEST` tokens, because cost grows with their square, unless a rule
    speaks of them all.
    """
    if request.pattern is None:
        queries, keys = min(request.queries, LONGEST), min(request.keys, LONGEST)
        request = replace(request, queries=queries, keys=keys)
    batch = 1 if max(request.queries, request.keys) > LONGEST // 4 else 3
    sample = Sample.of(replace(request, batch=3 if "padding" in request.masks else batch))
    if "padding" not in request.masks:
        return sample
    valid = torch.arange(request.keys) < torch.tensor([1.0, 0.5, 0.0])[:, None] * request.keys
    return replace(sample, mask=replace(sample.mask, valid=valid.to(request.device)))


def _by_head(sample: Sample, dtype: torch.dtype) -> dict[str, Tensor]:
    """The formula's tensors in a dtype, head by head, so that one head's scores fit anywhere."""
    heads = []
    for head in range(sample.q.shape[1]):
        one = sample.head(head, dtype)
        heads.append(_tensors(one, formula(one)))
    return {name: torch.cat([tensors[name] for tensors in heads], dim=1) for name in heads[0]}


def _tensors(sample: Sample, out: Tensor) -> dict[str, Tensor]:
    gradients = sample.backward(out) if sample.learned() else {}
    return {"out": out.detach(), **{f"d{name}": grad for name, grad in gradients.items()}}


def _differences(actual: Tensor, exact: Tensor) -> tuple[float, float]:
    """The largest one, and the L2 norm of all over that of the exact tensor."""
    difference = actual.double() - exact
    if not difference.isfinite().all():
        return float("inf"), float("inf")
    # A tensor of zeros, such as the gradient of a single key's scores, has no relative error.
    size = exact.norm().clamp(min=1e-3 * exact.numel() ** 0.5)
    return difference.abs().max().item(), (difference.norm() / size).item()
