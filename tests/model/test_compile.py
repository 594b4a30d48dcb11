"""torch.compile takes the model, whole or block by block, and changes no logit and no gradient."""

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from vitrail.attention.patterns.full import Full
from vitrail.attention.patterns.window import Window
from vitrail.attention.positions.rope import RopeMixed
from vitrail.model.torch_vit import TorchViT

from .small import ON_CPU, SIZES, logits_and_gradients, small_vit

pytestmark = pytest.mark.usefixtures("fresh_graphs")


def check(compiled_with: str, padded: bool, **options) -> None:
    torch.manual_seed(0)
    model = small_vit(**options)
    images = torch.randn(2, 3, 24, 32)
    valid = torch.ones(2, 24, 32, dtype=torch.bool)
    valid[0, :, 16:] = False
    sides = [
        logits_and_gradients(call, images, valid if padded else None)
        for call in (model, torch.compile(model, fullgraph=True, backend=compiled_with))
    ]
    torch.testing.assert_close(*sides, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("pool", ["token", "avg", "map"])
def test_the_model_is_one_graph_without_breaks(pool):
    check("aot_eager", True, pool=pool, depth=1, registers=2, layer_scale=0.1)


@pytest.mark.parametrize(
    "graphs, options",
    [
        (1, {"depth": 5}),
        (2, {"depth": 4, "pattern": [Full(), Window((2, 2))]}),
        (2, {"depth": 3, "pool": "map"}),  # which has attention of its own
        (1, {"depth": 5, "drop_path": 0.2}),  # the model as a whole
    ],
    ids=str,
)
def test_compiled_in_place_blocks_of_a_kind_share_a_graph(graphs, options):
    counter = CompileCounter()
    model = small_vit(**options).train()
    names, images = list(model.state_dict()), torch.randn(2, 3, 32, 32)
    expected = model(images)
    model.compile(backend=counter, fullgraph=True)
    found = model(images)
    assert list(model.state_dict()) == names
    assert counter.frame_count == graphs
    if "drop_path" not in options:
        torch.testing.assert_close(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("backend", ON_CPU)
def test_a_compiled_model_equals_itself_forward_and_backward(backend, padded):
    check("inductor", padded, backend=backend, depth=1, position=RopeMixed(), pool="avg")


@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("pool", ["token", "avg", "map"])
def test_an_exported_model_takes_any_batch(backend, pool):
    check_export(small_vit(backend=backend, pool=pool, registers=2, pattern=Window((2, 2))))


def test_an_exported_baseline_takes_any_batch():
    check_export(TorchViT(**SIZES, mlp_ratio=2.0, dropout=0.0).eval())


def check_export(model: nn.Module) -> None:
    batch = torch.export.Dim("batch", min=1, max=64)
    with torch.no_grad():
        images = torch.randn(7, 3, 24, 32)
        exported = torch.export.export(model, (images[:2],), dynamic_shapes=({0: batch},)).module()
        for size in (1, 2, 7):
            ours, expected = exported(images[:size]), model(images[:size])
            torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
