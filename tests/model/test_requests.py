"""What a model's layers will ask of their backends is known before any image is read."""

import pytest
import torch

from vitrail.attention import backends
from vitrail.attention.positions.rope import Rope

from .small import small_vit


@pytest.fixture
def asked(monkeypatch):
    """Every request that reaches `backends.resolve`, with the backend that it was for."""
    requests = []
    real = backends.resolve

    def listen(request, backend):
        requests.append(request)
        return real(request, backend)

    monkeypatch.setattr(backends, "resolve", listen)
    return requests


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
    real = torch.ones(2, *size, dtype=torch.bool) if padded else None
    with (
        torch.set_grad_enabled(training),
        torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16),
    ):
        model(torch.randn(2, 3, *size), real)
    planned = model.requests(
        batch=2,
        image_size=size,
        device=torch.device("cpu"),
        dtype=dtype,
        padded=padded,
        training=training,
    )
    pool = ["attn_pool"] if options.get("pool") == "map" else []
    assert list(planned) == ["blocks.0.attn", "blocks.1.attn", *pool]
    assert asked == list(planned.values())


def test_each_planned_layer_is_a_module_of_that_name_with_a_backend():
    model = small_vit(backend="eager", pool="map")
    planned = model.requests(
        batch=2,
        image_size=(24, 32),
        device=torch.device("cpu"),
        dtype=torch.float32,
        padded=False,
        training=False,
    )
    for name in planned:
        assert model.get_submodule(name).backend is backends.load("eager")


def test_the_plan_of_an_image_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="image size 24x30 does not divide"):
        small_vit().requests(
            batch=2,
            image_size=(24, 30),
            device=torch.device("cpu"),
            dtype=torch.float32,
            padded=False,
            training=False,
        )


def test_a_misspelt_backend_is_refused_when_the_model_is_built():
    with pytest.raises(ValueError, match=r"backend=refrence .*did you mean reference\?"):
        small_vit(backend="refrence")
