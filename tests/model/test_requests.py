"""What layers will ask of their backends, and what a model computes, is known beforehand."""

import pytest
import torch
from torch import Tensor

from vitrail.attention import backends
from vitrail.attention.positions.rope import Rope
from vitrail.attention.selection.requests import attention_layers, requests_of
from vitrail.model import ViT
from vitrail.model.flops import forward_flops

from .small import ON_CPU, SIZES, small_vit


def meta_model(**changes) -> ViT:
    with torch.device("meta"):
        return ViT(**(SIZES | changes))


def planned(model: ViT, *inputs: Tensor | None, training: bool = False, dtype=torch.float32):
    return requests_of(model, *inputs, device=torch.device("cpu"), dtype=dtype, training=training)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"registers": 3, "pool": "avg", "attention_dropout": 0.1, "backend": "eager"},
        {"position": Rope(), "class_token": False, "pool": "avg", "qk_norm": True},
        {"registers": 3, "pool": "map", "backend": "eager"},
    ],
    ids=str,
)
def test_the_plan_is_what_the_forward_asks(asked, options, dtype, training, padded):
    model = small_vit(**options).train(training)
    size = (16, 40)  # not the one that it was built for
    valid = torch.ones(2, *size, dtype=torch.bool) if padded else None
    halves = torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16)
    with torch.set_grad_enabled(training), halves:
        model(torch.randn(2, 3, *size), valid)
    said = list(asked)
    inputs = torch.empty(2, 3, *size, device="meta"), valid.to("meta") if padded else None
    plan = planned(meta_model(**options), *inputs, training=training, dtype=dtype)
    pool = ["attn_pool"] if options.get("pool") == "map" else []
    assert list(plan) == ["blocks.0.attn", "blocks.1.attn", *pool]
    assert said == [request for requests in plan.values() for request in requests]


def test_each_planned_layer_is_a_module_that_keeps_its_backend_and_mode():
    model = meta_model(backend="eager", pool="map").train()
    plan = planned(model, torch.empty(2, 3, 24, 32, device="meta"))
    assert model.training
    assert list(plan) == list(attention_layers(model))
    for name in plan:
        assert model.get_submodule(name).backend is backends.load("eager")


def test_a_plan_that_fails_leaves_the_backends_in_their_place():
    model = meta_model(backend="eager")
    with pytest.raises(ValueError, match="image size 24x30 does not divide"):
        planned(model, torch.empty(2, 3, 24, 30, device="meta"))
    assert model.blocks[0].attn.backend is backends.load("eager")


def test_a_misspelt_backend_is_refused_when_the_model_is_built():
    with pytest.raises(ValueError, match=r"backend=refrence .*did you mean reference\?"):
        small_vit(backend="refrence")


@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("options", [{}, {"position": Rope()}, {"pool": "map"}], ids=str)
def test_the_operations_of_every_backend_are_counted_alike_and_it_is_kept(backend, options):
    network = meta_model(backend=backend, **options)
    expected = forward_flops(meta_model(backend="reference", **options), (24, 32))
    assert forward_flops(network, (24, 32)) == expected > 0
    assert network.blocks[0].attn.backend.name == backend


def test_the_count_is_that_of_the_formula():
    dim, tokens, depth = 24, 13, 2
    stem = 2 * 12 * 3 * 8 * 8 * dim
    linear = 2 * tokens * dim * (3 * dim + dim + 8 * dim)
    attention = 2 * 2 * tokens * tokens * dim
    head = 2 * dim * 5
    assert forward_flops(meta_model(), (24, 32)) == stem + depth * (linear + attention) + head
