"""torch.compile takes the model, whole or block by block, and changes no logit and no gradient."""

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from vitrail.attention.patterns.full import Full
from vitrail.attention.patterns.window import Window
from vitrail.attention.positions.rope import RopeMixed
from vitrail.model.torch_vit import TorchViT

from .small import ON_CPU, SIZES, small_vit


@pytest.fixture(autouse=True)
def _forget_graphs():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def check(compiled_with: str, padded: bool, **options) -> None:
    torch.manual_seed(0)
    model = small_vit(**options)
    images = torch.randn(2, 3, 24, 32)
    valid = torch.ones(2, 24, 32, dtype=torch.bool)
    valid[0, :, 16:] = False
    sides = []
    for call in (model, torch.compile(model, fullgraph=True, backend=compiled_with)):
        model.zero_grad()
        logits = call(images, valid if padded else None)
        logits.square().sum().backward()
        sides.append([logits, *(parameter.grad for parameter in model.parameters())])
    for plain, compiled in zip(*sides, strict=True):
        torch.testing.assert_close(compiled, plain, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("pool", ["token", "avg", "map"])
def test_the_model_is_one_graph_without_breaks(pool):
    check("aot_eager", True, pool=pool, depth=1, registers=2, layer_scale=0.1)


def test_a_model_compiled_in_place_keeps_its_names():
    model = small_vit()
    names = list(model.state_dict())
    model.compile()
    assert list(model.state_dict()) == names


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
    images = torch.randn(2, 3, 32, 32)
    expected = model(images)
    model.compile(backend=counter, fullgraph=True)
    found = model(images)
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
        exported = torch.export.export(
            model, (torch.randn(2, 3, 24, 32),), dynamic_shapes=({0: batch},)
        )
        for size in (1, 2, 7):
            images = torch.randn(size, 3, 24, 32)
            torch.testing.assert_close(
                exported.module()(images), model(images), atol=1e-5, rtol=1e-5
            )
