"""torch.compile takes each layer as one graph and changes neither results nor the kernel."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.profiler import ProfilerActivity, profile

from vitrail.attention import Grid, MultiHeadAttention2d
from vitrail.attention.positions.rope import Rope, RopeMixed

from .cases import ON_CPU

GRID = Grid(3, 5, 1)


@pytest.fixture(autouse=True)
def _forget_graphs():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def build(backend: str, **options) -> MultiHeadAttention2d:
    torch.manual_seed(0)
    return MultiHeadAttention2d(12, 3, backend=backend, **options)


def arguments(tokens: int, rows: int, cols: int) -> list[dict]:
    """The kinds of masks that a layer may be given."""
    valid = torch.ones(2, rows, cols, dtype=torch.bool)
    valid[0, -1] = False
    mask = torch.rand(tokens, tokens) > 0.4
    mask[1] = False
    return [{}, {"valid": valid, "mask": mask}]


def close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def check_equal(backend: str, compiled_with: str) -> None:
    layer = build(backend, position=RopeMixed(), qk_norm=True)
    compiled = torch.compile(layer, fullgraph=True, backend=compiled_with)
    x = torch.randn(2, GRID.tokens, 12)
    for given in arguments(GRID.tokens, GRID.rows, GRID.cols):
        sides = []
        for call in (layer, compiled):
            leaf = x.clone().requires_grad_()
            out = call(leaf, GRID, **given)
            sides.append(
                (out, *torch.autograd.grad(out.square().sum(), [leaf, *layer.parameters()]))
            )
        for ours, theirs in zip(*sides, strict=True):
            close(ours, theirs)


@pytest.mark.parametrize("backend", ON_CPU)
def test_a_layer_is_one_graph_without_breaks(backend):
    check_equal(backend, "aot_eager")


@pytest.mark.parametrize("backend", ON_CPU)
def test_a_few_grids_make_a_few_graphs_and_no_storm(backend):
    counter = CompileCounter()
    layer = build(backend, position=Rope())
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for rows, cols in [(3, 5), (4, 6)] * 3 + [(5, 7), (2, 9), (6, 3), (3, 5)]:
        x = torch.randn(2, 1 + rows * cols, 12)
        close(compiled(x, Grid(rows, cols, 1)), layer(x, Grid(rows, cols, 1)))
    # The first grid is compiled as it is, the second with open sizes, which serve all the others.
    assert counter.frame_count <= 3


@pytest.mark.slow
@pytest.mark.parametrize("backend", ON_CPU)
def test_a_compiled_layer_equals_itself_forward_and_backward(backend):
    check_equal(backend, "inductor")


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("backend", ON_CPU)
def test_compiling_does_not_replace_the_kernel(backend, training):
    layer = build(backend)
    compiled = torch.compile(layer, fullgraph=True)
    x = torch.randn(2, GRID.tokens, 12)
    with torch.set_grad_enabled(training):
        compiled(x, GRID)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            compiled(x, GRID)
    seen = {event.key for event in profiler.key_averages()}
    flash = "aten::_scaled_dot_product_flash_attention_for_cpu"
    if backend == "sdpa_flash":
        assert flash in seen
    elif backend != "sdpa":
        assert flash not in seen
