"""The contract in one graph of torch.compile with many kinds of masks, on grids of any size."""

from collections.abc import Iterable, Iterator

import pytest
import torch

from vitrail.attention import Grid, attend, backends
from vitrail.attention.backends import Request

from .cases import BATCH, HEADS, KINDS, ON_CPU, PREFIXES, WIDTH, mask_and_bias
from .oracle import assert_near, attention

GRIDS = [Grid(*shape, prefix) for shape in ((3, 5), (8, 8), (14, 9)) for prefix in PREFIXES]
FEW = ("no mask", "padding", "padding and pattern", "padding and learned bias")

each_backend = pytest.mark.parametrize("name", ON_CPU)


@pytest.fixture(autouse=True)
def _forget_graphs():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def check(
    name: str,
    dtype: torch.dtype,
    grids: list[Grid],
    *,
    compiled_with: str,
    kinds: Iterable[str] = KINDS,
) -> None:
    """The kinds of masks that the backend takes, in one graph that serves all the grids."""
    backend = backends.load(name)
    torch.manual_seed(0)
    taken = [
        kind
        for kind, call in calls(kinds, grids[0], dtype)
        if not backend.refuse(Request.of(*call, 0.0))
    ]

    def every_kind(given):
        return [attend(*call[:3], mask=call[3], bias=call[4], backend=backend) for call in given]

    graph = torch.compile(every_kind, fullgraph=True, backend=compiled_with, dynamic=len(grids) > 1)
    for grid in grids:
        given = [call for _, call in calls(taken, grid, dtype)]
        outs = graph(given)
        towards = [torch.randn(out.shape).to(dtype) for out in outs]
        leaves = [learned(call) for call in given]
        found = iter(torch.autograd.grad(outs, [leaf for own in leaves for leaf in own], towards))
        for kind, call, own, out, toward in zip(taken, given, leaves, outs, towards, strict=True):
            doubles = [leaf.detach().double().requires_grad_() for leaf in own]
            mask, bias = call[3:]
            exact = attention(
                *doubles[:3],
                visible=mask.visible(out.device),
                bias=doubles[3] if len(doubles) > 3 else bias,
            )
            assert_near(f"output under {kind} on {grid}", out, exact)
            wanted = torch.autograd.grad(exact, doubles, toward.double())
            for tensor, theirs in zip(("dq", "dk", "dv", "dbias"), wanted, strict=False):
                assert_near(f"{tensor} under {kind} on {grid}", next(found), theirs)


def calls(kinds: Iterable[str], grid: Grid, dtype: torch.dtype) -> Iterator[tuple[str, tuple]]:
    """Each kind with a call of it: q, k, v, mask and bias; what learns is a leaf."""
    shape = (BATCH, HEADS, grid.tokens, WIDTH)
    for kind in kinds:
        q, k, v = (torch.randn(shape).to(dtype).requires_grad_() for _ in range(3))
        mask, bias = mask_and_bias(KINDS[kind], grid, dtype)
        yield kind, (q, k, v, mask, bias.requires_grad_() if KINDS[kind].learned else bias)


def learned(call: tuple) -> list[torch.Tensor]:
    """What gradients are wanted for: q, k, v and a learned bias."""
    return [part for part in (*call[:3], call[4]) if part is not None and part.requires_grad]


@pytest.mark.slow
@each_backend
def test_one_traced_graph_of_every_kind_equals_float64_on_every_grid(name):
    check(name, torch.float32, GRIDS, compiled_with="aot_eager")


@pytest.mark.slow
@each_backend
def test_a_traced_graph_of_a_single_token_equals_float64(name):
    check(name, torch.float32, [Grid(1, 1)], compiled_with="aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@each_backend
def test_compiled_kernels_equal_float64(name, dtype):
    check(name, dtype, [Grid(3, 5, 1)], compiled_with="inductor", kinds=FEW)
