"""Which backend computes each attention layer of a run: named, measured or remembered, and proved.

All of it is decided on the model on the meta device, before any data is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import product

from torch import nn

from vitrail.attention import MultiHeadAttention2d, backends
from vitrail.attention.backends import AUTO, Backend, Request
from vitrail.attention.selection import tune
from vitrail.attention.selection.gate import FailedGate, GateResult, prove


@dataclass(frozen=True)
class LayerPlan:
    """One attention layer before the run.

    pattern, position, scale: what the layer is made of, as text; empty for a layer without them.
    requests: its distinct calls, the largest first. requested: the backend that the config names.
    times: median seconds of each backend that `auto` measured on the largest call. gate: the
    proof of each call, empty where the gate was not asked.
    """

    requests: tuple[Request, ...]
    requested: str
    backend: Backend
    why: str
    rejected: Mapping[str, str] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    gate: tuple[GateResult, ...] = ()
    pattern: str = ""
    position: str = ""
    scale: str = ""


@dataclass(frozen=True)
class Rules:
    """What the choice of backends is bound to.

    backend: the name in the config. gate: whether each choice is proved first. deterministic:
    whether `auto` may pick only what gives equal gradients on every run. saved: the choices of a
    checkpoint by layer, which `auto` keeps where they can be had.
    """

    backend: str
    gate: bool
    deterministic: bool
    saved: Mapping[str, str] = field(default_factory=dict)


def plan_layers(
    asked: Mapping[str, tuple[Request, ...]], network: nn.Module, rules: Rules
) -> dict[str, LayerPlan]:
    """A backend for each layer by name; raises Refused or FailedGate for one that will not do.

    Layers with equal requests are planned once.
    """
    layers, plan = {}, cache(partial(_plan, rules, network))
    for name, requests in asked.items():
        made_of = _made_of(network.get_submodule(name))
        layers[name] = replace(plan(requests, rules.saved.get(name)), **made_of)
    return layers


def _made_of(layer: nn.Module) -> dict[str, str]:
    """Pattern, position and scale of an attention layer; a pooling query has none of them."""
    if not isinstance(layer, MultiHeadAttention2d):
        return {}
    return {
        "pattern": str(layer.pattern),
        "position": type(layer.position).__name__,
        "scale": "learned" if layer.log_scale is not None else f"{layer.scale:.6g}",
    }


def set_backends(network: nn.Module, layers: Mapping[str, LayerPlan]) -> None:
    """Put the planned backends into a network's layers."""
    for name, layer in layers.items():
        network.get_submodule(name).backend = layer.backend


def _plan(
    rules: Rules, network: nn.Module, requests: tuple[Request, ...], saved: str | None
) -> LayerPlan:
    requests = tuple(sorted(requests, key=lambda request: request.scores, reverse=True))
    if rules.backend == AUTO:
        return _automatic(requests, rules, saved)
    for request in requests:
        clash = " ".join(backends.lacks(rules.backend, request))
        backends.resolve(request, rules.backend, because=_because(clash, network))
    backend = backends.load(rules.backend)
    proofs = _prove(requests, backend, rules)
    return LayerPlan(requests, rules.backend, backend, "named", gate=proofs)


def _automatic(requests: tuple[Request, ...], rules: Rules, saved: str | None) -> LayerPlan:
    """The fastest on the largest call that also takes the smaller ones and passes the gate."""
    able = [tune.candidates(each, deterministic=rules.deterministic) for each in requests]
    if all(saved in names for names, _ in able):
        backend = backends.load(saved)
        proofs = _prove(requests, backend, rules)
        return LayerPlan(requests, AUTO, backend, "chosen in training", gate=proofs)
    without = {}
    for name, request in product(backends.names(), requests[1:]):
        if lacks := backends.lacks(name, request):
            without[name] = f"cannot {' or '.join(lacks)}"
    while True:
        choice = tune.choose(requests[0], deterministic=rules.deterministic, without=without)
        backend = backends.load(choice.name)
        try:
            proofs = _prove(requests, backend, rules)
        except FailedGate as failure:
            without[choice.name] = str(failure)
            continue
        return LayerPlan(
            requests, AUTO, backend, choice.why(), choice.rejected, choice.times, proofs
        )


def _prove(requests: tuple[Request, ...], backend: Backend, rules: Rules) -> tuple[GateResult, ...]:
    if not rules.gate or backend is backends.load("reference"):
        return ()
    return tuple(prove(request, backend) for request in requests)


def _because(clash: str, network: nn.Module) -> str:
    """Which choices of the config ask for what a backend lacks, told by the words of the clash."""
    position = type(network.position).__module__.rpartition(".")[2]
    reasons = {
        "bias": f"position={position} adds a bias",
        "padding mask": "keys are padded by data.resize=native or at the edges of windows",
        "attention mask": "the pattern hides pairs of tokens",
        "a pattern": "the pattern hides pairs of tokens",
        "drop attention": "model.attention_dropout drops weights",
    }
    there = dict.fromkeys(reason for words, reason in reasons.items() if words in clash)
    return f", and {' and '.join(there)}" if there else ""
