"""GELU is torch's, inside a compiled graph and outside of it, whatever lies how in memory."""

import pytest
import torch
import torch.nn.functional as F

from vitrail.model.layers import Gelu


@pytest.mark.parametrize("compiler", [None, "aot_eager", "inductor"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
def test_values_and_gradients_are_torchs(compiler, dtype, transposed):
    torch.compiler.reset()  # a function is compiled a few times at most
    torch.manual_seed(0)
    x = torch.randn(5, 7, 3, dtype=dtype)
    x, grad = x.transpose(0, 2) if transposed else x, torch.randn_like(x, requires_grad=False)
    if transposed:
        grad = grad.reshape(3, 7, 5)  # in the order of rows, against that of the values
    gelu = Gelu() if compiler is None else torch.compile(Gelu(), fullgraph=True, backend=compiler)
    sides = []
    for call in (gelu, F.gelu):
        leaf = x.clone().requires_grad_()
        out = call(leaf)
        sides.append([out, *torch.autograd.grad(out, leaf, grad)])
    for ours, theirs in zip(*sides, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_compiled_graph_on_a_cpu_calls_torchs_kernel():
    seen = []

    def compiler(graph, _):
        seen.extend(node.target for node in graph.graph.nodes)
        return graph.forward

    torch.compile(Gelu(), fullgraph=True, backend=compiler)(torch.randn(4))
    assert torch.ops.vitrail.gelu.default in {getattr(t, "_opoverload", t) for t in seen}


def test_an_exported_graph_needs_no_operator_of_ours():
    graph = torch.export.export(Gelu(), (torch.randn(4),)).graph
    assert torch.ops.aten.gelu.default in {node.target for node in graph.nodes}
