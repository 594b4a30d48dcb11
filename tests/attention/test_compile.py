"""torch.compile takes each layer as one graph and changes neither results nor the kernel."""

from collections.abc import Iterable, Iterator
from itertools import chain

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from vitrail.attention import Grid, MultiHeadAttention2d, attend, backends
from vitrail.attention.backends import Request
from vitrail.attention.positions.rope import Rope, RopeMixed

from .cases import BATCH, HEADS, KINDS, ON_CPU, PREFIXES, WIDTH, mask_and_bias, seen_while
from .oracle import assert_near, assert_same, attention, exact_copies, with_gradients

CPU = torch.device("cpu")
GRID = Grid(3, 5, 1)
GRIDS = [Grid(*shape, prefix) for shape in ((3, 5), (8, 8), (14, 9)) for prefix in PREFIXES]
FEW = ("no mask", "padding", "padding and pattern", "padding and learned bias")

pytestmark = pytest.mark.usefixtures("fresh_graphs")
each_backend = pytest.mark.parametrize("backend", ON_CPU)


def build(backend: str, **options) -> MultiHeadAttention2d:
    torch.manual_seed(0)
    return MultiHeadAttention2d(12, 3, backend=backend, **options)


@pytest.mark.parametrize(
    "compiled_with", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]
)
@each_backend
def test_a_layer_is_one_graph_that_equals_itself_forward_and_backward(backend, compiled_with):
    layer = build(backend, position=RopeMixed(), qk_norm=True)
    compiled = torch.compile(layer, fullgraph=True, backend=compiled_with)
    x = torch.randn(2, GRID.tokens, 12, requires_grad=True)
    valid = torch.ones(2, 3, 5, dtype=torch.bool)
    valid[0, -1] = False
    mask = torch.rand(16, 16) > 0.4
    mask[1] = False
    for given in ({}, {"valid": valid, "mask": mask}):
        leaves = [x, *layer.parameters()]
        sides = [with_gradients(call(x, GRID, **given), leaves) for call in (layer, compiled)]
        torch.testing.assert_close(*sides, atol=1e-5, rtol=1e-5)


@each_backend
def test_a_few_grids_make_a_few_graphs_and_no_storm(backend):
    counter = CompileCounter()
    layer = build(backend, position=Rope())
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for rows, cols in [(3, 5), (4, 6)] * 3 + [(5, 7), (2, 9), (6, 3), (3, 5)]:
        x, grid = torch.randn(2, 1 + rows * cols, 12), Grid(rows, cols, 1)
        torch.testing.assert_close(compiled(x, grid), layer(x, grid), atol=1e-5, rtol=1e-5)
    # The first grid is compiled as it is, the second with open sizes, which serve all the others.
    assert counter.frame_count <= 3


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
@each_backend
def test_compiling_does_not_replace_the_kernel(backend, training):
    compiled = torch.compile(build(backend), fullgraph=True)
    x = torch.randn(2, GRID.tokens, 12)
    with torch.set_grad_enabled(training):
        compiled(x, GRID)
        seen = seen_while(lambda: compiled(x, GRID))
    flash = "aten::_scaled_dot_product_flash_attention_for_cpu"
    if backend != "sdpa":  # which leaves the choice to torch
        assert (flash in seen) == (backend == "sdpa_flash")


def check_contract(
    name: str, dtype: torch.dtype, grids: list[Grid], compiled_with: str, kinds: Iterable[str]
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
        outs = [attend(*call[:3], mask=call[3], bias=call[4], backend=backend) for call in given]
        return torch.stack(outs)

    graph = torch.compile(every_kind, fullgraph=True, backend=compiled_with, dynamic=len(grids) > 1)
    for grid in grids:
        given = [call for _, call in calls(taken, grid, dtype)]
        leaves = [learned(call) for call in given]
        doubles = [exact_copies(own) for own in leaves]
        exact = torch.stack(
            [
                attention(q, k, v, visible=mask.visible(CPU), bias=other[0] if other else bias)
                for (q, k, v, *other), (*_, mask, bias) in zip(doubles, given, strict=True)
            ]
        )
        outs = graph(given)
        assert_same(outs, [*chain(*leaves)], exact, [*chain(*doubles)], f" on {grid}")
        for kind, out, want in zip(taken, outs, exact, strict=True):
            assert_near(f"output under {kind} on {grid}", out, want)


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
@pytest.mark.parametrize("grids", [GRIDS, [Grid(1, 1)]], ids=["grids", "a single token"])
@each_backend
def test_one_traced_graph_of_every_kind_equals_float64_on_every_grid(backend, grids):
    check_contract(backend, torch.float32, grids, "aot_eager", KINDS)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@each_backend
def test_compiled_kernels_equal_float64(backend, dtype):
    check_contract(backend, dtype, [GRID], "inductor", FEW)
