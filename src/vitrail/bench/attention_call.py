"""One attention call: its shape, its inputs, what it asks of backends, what it computes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from vitrail.attention import Grid, backends
from vitrail.attention.backends import Backend, Request, compute_capability
from vitrail.attention.patterns import Call, GridPattern, Pattern
from vitrail.attention.patterns.full import Full
from vitrail.attention.selection.sample import Sample
from vitrail.errors import UserError

KINDS_OF_CALLS = 64  # that are compiled before torch gives up, and says so


def read_shape(given: Sequence[int | Sequence[int]]) -> dict[str, Any]:
    """batch, heads, grid and width of an `AttentionCall`, of [batch, heads, tokens, width].

    Tokens may be [rows, cols] or [rows, cols, prefix].
    """
    match given:
        case [int(), int(), int(tokens), int()]:
            sizes, grid = given, [1, tokens]
        case [int(), int(), [int(), int()] | [int(), int(), int()] as grid, int()]:
            sizes = [*given[:2], *grid[:2], given[3]]
        case _:
            sizes = [0]
    if min(sizes) < 1:
        raise UserError(
            "bench.shapes takes [batch, heads, tokens, head width], tokens as [rows, cols] or "
            f"[rows, cols, prefix] for a map, got {given}"
        )
    return {"batch": given[0], "heads": given[1], "grid": Grid(*grid), "width": given[3]}


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """What a layer computes between its projections, on tensors (batch, heads, N, width).

    grid: the N tokens; one of a single row is a number of tokens without a map. masks: kinds, as
    `Request` has them. bias: whether a learned one is added to the scores. backward: with
    gradients, as in training, or without.
    """

    batch: int
    heads: int
    grid: Grid
    width: int
    dtype: torch.dtype
    masks: frozenset[str]
    pattern: Pattern
    device: str
    bias: bool = False
    backward: bool = True

    @property
    def map(self) -> str:
        """`14 x 14`, `14 x 14 + 1` with prefix tokens; empty where there is none."""
        prefix = f" + {self.grid.prefix}" if self.grid.prefix else ""
        return f"{self.grid.rows} x {self.grid.cols}{prefix}" if self.grid.rows > 1 else ""

    @property
    def shape(self) -> str:
        """`(64, 3, 197, 64) on 14 x 14 + 1`."""
        sizes = (self.batch, self.heads, self.grid.tokens, self.width)
        return f"{sizes} on {self.map}" if self.map else f"{sizes}"

    def sample(self) -> Sample:
        """Inputs, equal on every call."""
        names = ("device", "dtype", "batch", "heads", "width", "masks", "bias", "backward")
        asked = {name: getattr(self, name) for name in names}
        tokens = {"queries": self.grid.tokens, "keys": self.grid.tokens}
        return Sample.of(Request(**asked, **tokens, bias_grad=self.bias and self.backward))

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
        pairs = self.grid.tokens**2
        if self.pattern != Full():
            pairs = int(GridPattern(self.pattern, self.grid).visible(torch.device("cpu")).sum())
        return 4 * self.width * pairs * self.batch * self.heads * (3 if self.backward else 1)

    def function(self, backend: Backend, sample: Sample) -> Callable[[], object]:
        """One call on these inputs, which gives its output, or the gradients where it has any."""

        def forward() -> Tensor:
            outs = [
                backend(c.q, c.k, c.v, mask=c.mask, bias=c.bias, scale=sample.scale, dropout_p=0.0)
                for c in self._split(sample)
            ]
            return self.pattern.join(outs, self.grid)

        return (lambda: sample.backward(forward())) if self.backward else forward

    def _split(self, sample: Sample) -> list[Call]:
        whole = Call(sample.q, sample.k, sample.v, sample.mask, sample.bias)
        return self.pattern.split(whole, None, self.grid)


class Compiled(Backend):
    """A backend in a graph of torch.compile, as under compile=true; serves what that one serves."""

    def __init__(self, backend: Backend):
        for name in ("name", "keeps_scores", "capability", "refuse", "variant", "kernels"):
            setattr(self, name, getattr(backend, name))
        # With `fullgraph` torch raises where it would otherwise go on uncompiled, and quietly.
        self._graph = torch.compile(backend.__call__, fullgraph=True, dynamic=False)

    def __call__(self, q, k, v, **given):
        with torch._dynamo.config.patch(recompile_limit=KINDS_OF_CALLS):
            return self._graph(q, k, v, **given)


def function_of(call: AttentionCall, name: str, compiled: bool) -> Callable[[], object]:
    """The call by the backend of that name; a process of its own can be told to make it."""
    return call.function(load(name, compiled), call.sample())


def load(name: str, compiled: bool) -> Backend:
    """The backend of that name; compiled: in a graph of torch.compile."""
    return Compiled(backends.load(name)) if compiled else backends.load(name)
