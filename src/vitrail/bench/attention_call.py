"""One attention call that is measured: its inputs, what it asks of backends, what it computes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from vitrail.attention import backends
from vitrail.attention.backends import Backend, Request, compute_capability
from vitrail.attention.patterns import Call, GridPattern, Pattern
from vitrail.attention.patterns.full import Full
from vitrail.attention.selection.sample import Sample
from vitrail.bench.compiled import Compiled
from vitrail.bench.shapes import Shape


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """What a layer computes between its projections, on tensors (B, h, N, d).

    masks: kinds, as `Request` has them. bias: whether a learned one is added to the scores.
    backward: with gradients, as in training, or without.
    """

    shape: Shape
    dtype: torch.dtype
    masks: frozenset[str]
    pattern: Pattern
    device: str
    bias: bool = False
    backward: bool = True

    def sample(self) -> Sample:
        """Inputs, equal on every call."""
        shape = self.shape
        return Sample.of(
            Request(
                device=self.device,
                dtype=self.dtype,
                batch=shape.batch,
                heads=shape.heads,
                queries=shape.grid.tokens,
                keys=shape.grid.tokens,
                width=shape.width,
                masks=self.masks,
                bias=self.bias,
                bias_grad=self.bias and self.backward,
                backward=self.backward,
            )
        )

    @cached_property
    def requests(self) -> tuple[Request, ...]:
        """What backends are asked: one request, or a pattern's distinct ones, the largest first."""
        with torch.set_grad_enabled(self.backward):
            calls = self._split(replace(self, device="meta").sample())
            asked = [Request.of(c.q, c.k, c.v, c.mask, c.bias, dropout_p=0.0) for c in calls]
        here = {"device": self.device, "compute": compute_capability(torch.device(self.device))}
        asked = dict.fromkeys(replace(request, **here) for request in asked)
        return tuple(sorted(asked, key=lambda request: request.scores, reverse=True))

    @property
    def operations(self) -> int:
        """Floating-point operations that the formula needs; a multiply-add counts as two.

        4 d for each pair of tokens that the pattern lets see each other, and twice as many for
        gradients. Pairs that masks hide count, and what a kernel computes a second time does not.
        """
        shape = self.shape
        pairs = shape.grid.tokens**2
        if self.pattern != Full():
            pairs = int(GridPattern(self.pattern, shape.grid).visible(torch.device("cpu")).sum())
        return 4 * shape.width * pairs * shape.batch * shape.heads * (3 if self.backward else 1)

    def function(self, backend: Backend, sample: Sample) -> Callable[[], object]:
        """One call on these inputs, which gives its output, or the gradients where it has any."""
        if self.backward:
            return lambda: sample.backward(self._forward(sample, backend))
        return lambda: self._forward(sample, backend)

    def _forward(self, sample: Sample, backend: Backend) -> Tensor:
        outs = [
            backend(c.q, c.k, c.v, mask=c.mask, bias=c.bias, scale=sample.scale, dropout_p=0.0)
            for c in self._split(sample)
        ]
        return self.pattern.join(outs, self.shape.grid)

    def _split(self, sample: Sample) -> list[Call]:
        whole = Call(sample.q, sample.k, sample.v, sample.mask, sample.bias)
        return self.pattern.split(whole, None, self.shape.grid)


def function_of(call: AttentionCall, name: str, compiled: bool) -> Callable[[], object]:
    """The call by the backend of that name; what a process of its own can be told to make."""
    backend = backends.load(name)
    return call.function(Compiled(backend) if compiled else backend, call.sample())
