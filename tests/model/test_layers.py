"""Dropout drops as torch's does, and GELU is torch's, in a compiled graph and outside of one."""

import pytest
import torch
import torch.nn.functional as F

from vitrail.model.layers import Dropout, Gelu, drop

MANY = 200_000


@pytest.mark.parametrize("p", [0.1, 0.2, 0.5, 0.9])
def test_the_share_that_is_dropped_and_the_mean_of_what_is_left_are_torchs(p):
    torch.manual_seed(0)
    ones = torch.ones(MANY)
    out = Dropout(p)(ones)
    kept = out[out != 0]
    assert (out == 0).float().mean() == pytest.approx(p, abs=0.005)
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - p)), rtol=1e-4, atol=0)
    assert F.dropout(ones, p).mean() == pytest.approx(out.mean().item(), abs=0.02 / (1 - p))


def test_neighbours_are_dropped_independently():
    torch.manual_seed(0)
    gone = (Dropout(0.3)(torch.ones(MANY)) == 0).float()
    for apart in (1, 2, 3, 4):  # four of them share one random number
        both = (gone[apart:] * gone[:-apart]).mean()
        assert both == pytest.approx(0.09, abs=0.005)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7,), (3, 5, 11), (2, 0)], ids=str)
def test_gradients_flow_back_through_what_is_kept_alone(dtype, shape):
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    out = Dropout(0.4)(x)
    out.sum().backward()
    assert out.shape == shape
    assert out.dtype == dtype
    torch.testing.assert_close(out, x * x.grad)


def test_a_strided_tensor_is_dropped_value_by_value():
    torch.manual_seed(0)
    x = torch.randn(6, 4, requires_grad=True)
    out = drop(x.T, 2**15)
    assert set(torch.unique(out / x.T.detach()).tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_nothing_and_everything_are_exact_and_evaluation_drops_nothing(p):
    x = torch.randn(50)
    assert torch.equal(Dropout(p)(x), x * (1 - p))
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert Dropout(0.999999)(x).isfinite().all()  # nearly everything


@pytest.mark.usefixtures("fresh_graphs")
@pytest.mark.parametrize("compiler", [None, "aot_eager", "inductor"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
def test_values_and_gradients_of_gelu_are_torchs(compiler, dtype, transposed):
    torch.manual_seed(0)
    x, grad = torch.randn(2, 5, 7, 3, dtype=dtype)
    if transposed:
        x, grad = x.transpose(0, 2), grad.reshape(3, 7, 5)  # values in columns, gradients in rows
    x.requires_grad_()
    gelu = Gelu() if compiler is None else torch.compile(Gelu(), fullgraph=True, backend=compiler)
    sides = [[out, *torch.autograd.grad(out, x, grad)] for out in (gelu(x), F.gelu(x))]
    torch.testing.assert_close(*sides)


def test_gelu_in_a_compiled_graph_on_a_cpu_calls_torchs_kernel():
    seen = []

    def compiler(graph, _):
        seen.extend(node.target for node in graph.graph.nodes)
        return graph.forward

    torch.compile(Gelu(), fullgraph=True, backend=compiler)(torch.randn(4))
    assert torch.ops.vitrail.gelu.default in {getattr(t, "_opoverload", t) for t in seen}


def test_gelu_in_an_exported_graph_needs_no_operator_of_ours():
    graph = torch.export.export(Gelu(), (torch.randn(4),)).graph
    assert torch.ops.aten.gelu.default in {node.target for node in graph.nodes}
