"""The backends of a model's layers, none of which is timed or trusted before its gate."""

from collections.abc import Mapping

from vitrail.attention.backends import AUTO
from vitrail.attention.selection.gate import FailedGate
from vitrail.attention.selection.layers import LayerPlan, Rules, plan_layers
from vitrail.run.console import against
from vitrail.run.plan import Plan


def proved(
    plan: Plan, backend: str, *, deterministic: bool, saved: Mapping[str, str] | None = None
) -> dict[str, LayerPlan]:
    """That backend in each layer of a plan; raises Refused or FailedGate where it may not be.

    saved: the backends of a checkpoint by layer, which `auto` keeps.
    """
    asked = {name: layer.requests for name, layer in plan.layers.items()}
    rules = Rules(backend, gate=True, deterministic=deterministic, saved=saved or {})
    return plan_layers(asked, plan.meta_model, rules)


def refusal(plan: Plan, backend: str, *, deterministic: bool) -> str:
    """Why not every layer may have this backend; empty where each may."""
    requests = {request for layer in plan.layers.values() for request in layer.requests}
    if backend != AUTO and (lacks := against(backend, requests)):
        return f"cannot {' or '.join(lacks)}"
    try:
        proved(plan, backend, deterministic=deterministic)
    except FailedGate as failure:
        return str(failure)
    return ""
