"""What is decided about each attention layer before any data is read."""

from dataclasses import replace

import pytest
import torch

from vitrail.attention import backends
from vitrail.attention.backends import Refused, Request
from vitrail.attention.selection import layers
from vitrail.attention.selection.gate import FailedGate
from vitrail.attention.selection.layers import Rules, plan_layers, set_backends
from vitrail.model import ViT

CALL = Request("cpu", torch.float32, batch=2, heads=3, queries=12, keys=12, width=8)
SMALLER = replace(CALL, queries=1)
ASKED = {"blocks.0.attn": (CALL,), "blocks.1.attn": (SMALLER, CALL)}


@pytest.fixture
def network() -> ViT:
    return ViT(image_size=(24, 32), patch_size=8, dim=24, depth=2, heads=3, num_classes=5)


def rules(backend: str, **changes) -> Rules:
    return Rules(backend, **({"gate": True, "deterministic": False} | changes))


def test_a_named_backend_is_proved_for_every_call_of_every_layer(network):
    plan = plan_layers(ASKED, network, rules("eager"))
    assert [len(layer.gate) for layer in plan.values()] == [1, 2]
    assert plan["blocks.1.attn"].requests == (CALL, SMALLER), "the largest call comes first"
    assert all(layer.why == "named" for layer in plan.values())


def test_the_gate_can_be_left_out_and_the_reference_needs_none(network):
    assert not plan_layers(ASKED, network, rules("eager", gate=False))["blocks.0.attn"].gate
    assert not plan_layers(ASKED, network, rules("reference"))["blocks.0.attn"].gate


def test_a_refusal_names_what_asks_for_it_and_who_can(network):
    asked = {"blocks.0.attn": (replace(CALL, dropout=0.1),)}
    lack = "drop attention weights, and model.attention_dropout drops weights"
    with pytest.raises(Refused, match=f"^backend=sdpa_flash cannot {lack}; .*eager.* can$"):
        plan_layers(asked, network, rules("sdpa_flash"))


def test_auto_keeps_what_a_checkpoint_chose_and_layers_get_it(network):
    saved = {"blocks.0.attn": "sdpa_math", "blocks.1.attn": "reference"}
    plan = plan_layers(ASKED, network, rules("auto", saved=saved))
    assert {layer.why for layer in plan.values()} == {"chosen in training"}
    set_backends(network, plan)
    assert network.blocks[0].attn.backend is backends.load("sdpa_math")
    assert network.blocks[1].attn.backend is backends.load("reference")


def test_auto_measures_anew_where_the_saved_choice_cannot_run_here(network):
    saved = {"blocks.0.attn": "sdpa_efficient"}
    plan = plan_layers({"blocks.0.attn": (CALL,)}, network, rules("auto", saved=saved))
    assert plan["blocks.0.attn"].times


def test_a_named_backend_is_not_moved_by_what_a_checkpoint_chose(network):
    saved = dict.fromkeys(ASKED, "sdpa_math")
    plan = plan_layers(ASKED, network, rules("eager", saved=saved))
    assert {layer.backend.name for layer in plan.values()} == {"eager"}


def test_auto_passes_over_what_fails_the_gate_and_says_so(network, monkeypatch):
    fastest = plan_layers(ASKED, network, rules("auto"))["blocks.0.attn"].backend.name
    real = layers.prove

    def check(request, backend):
        if backend.name == fastest:
            raise FailedGate("fails the gate")
        return real(request, backend)

    monkeypatch.setattr(layers, "prove", check)
    layer = plan_layers(ASKED, network, rules("auto"))["blocks.0.attn"]
    assert layer.backend.name != fastest
    assert layer.rejected[fastest] == "fails the gate"


def test_auto_takes_only_what_serves_the_smaller_calls_too(network):
    asked = {"blocks.0.attn": (CALL, replace(SMALLER, bias=True, bias_grad=True))}
    layer = plan_layers(asked, network, rules("auto"))["blocks.0.attn"]
    assert layer.rejected["sdpa_flash"] == "cannot give the gradient of a bias"
