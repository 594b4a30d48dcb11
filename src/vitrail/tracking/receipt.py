"""receipt.json: what each attention layer asked for, what it got and why, and on what machine."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.utilities import rank_zero_only

from vitrail.attention.selection.layers import LayerPlan
from vitrail.tracking import environment
from vitrail.tracking.atomic import write_json
from vitrail.tracking.kernel_watch import KernelWatch, SeenKernels
from vitrail.tracking.loggers import Loggers


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What computed a run, or a part of one that was resumed."""

    environment: Mapping[str, Any] = field(default_factory=environment.describe)
    precision: str  # Lightning's name of it
    compiled: bool  # whether the network ran under torch.compile
    layers: Mapping[str, LayerPlan]  # by the module's name
    kernels: SeenKernels | None = None  # None until the profiler has seen them
    from_step: int = 0  # the optimizer step that this part begins at
    earlier: Sequence[Mapping[str, Any]] = ()  # receipts of the parts before, the oldest first

    def content(self) -> dict[str, Any]:
        """What the file holds, as containers that JSON knows."""
        layers = {name: _layer(layer) for name, layer in self.layers.items()}
        kernels = None if self.kernels is None else vars(self.kernels)
        content = {**vars(self), "layers": layers, "kernels": kernels}
        return json.loads(json.dumps(content, default=_plain))

    def rows(self) -> list[dict[str, Any]]:
        """One row a layer of plain values, for a table; of its calls the largest."""
        rows = []
        for name, layer in self.content()["layers"].items():
            gate, requests = layer.pop("gate"), layer.pop("requests")
            if gate and gate != "off":
                errors, allowed = gate[0]["errors"], gate[0]["allowed"]
                gate = {of: f"{errors[of]:.1e} of {allowed[of]:.1e}" for of in errors}
            cells = {"layer": name, **layer, "gate": gate or {}, **requests[0]}
            rows.append({key: _cell(value) for key, value in cells.items()})
        return rows

    def write(self, path: Path) -> None:
        """Write it as JSON, replacing an earlier one; raises OSError when it cannot."""
        write_json(path, self.content())


def watch(receipt: Receipt, loggers: Loggers, folder: Path) -> KernelWatch:
    """Write receipt.json now, and again with the kernels that the first steps are seen to call.

    It keeps the receipts of earlier parts of the run; the loggers show layers and kernels.
    """
    path = folder / "receipt.json"
    receipt = replace(receipt, earlier=earlier_parts(path))
    rank_zero_only(receipt.write)(path)
    layers = receipt.layers.values()
    if layers:
        loggers.show_table("receipt", receipt.rows())

    def record(seen: SeenKernels) -> None:
        replace(receipt, kernels=seen).write(path)
        loggers.show_table("kernels", seen.rows())

    promises = {
        layer.backend.name: layer.backend.kernels(layer.requests[0], compiled=receipt.compiled)
        for layer in layers
    }
    # The first step of a compiled graph traces it, which calls every operator that is considered.
    return KernelWatch(promises, record, step=1 if receipt.compiled else 0)


def earlier_parts(path: Path) -> list[dict[str, Any]]:
    """The receipts in a file that a resumed run is about to replace, the oldest first."""
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [*before.pop("earlier", []), before]


def _layer(layer: LayerPlan) -> dict[str, Any]:
    proved = layer.gate or layer.backend.name == "reference"
    told = ("errors", "allowed", "seconds")
    results = [{name: getattr(result, name) for name in told} for result in layer.gate]
    return {
        "requests": [vars(request) for request in layer.requests],
        "requested": layer.requested,
        "chosen": layer.backend.name,
        "why": layer.why,
        "pattern": layer.pattern,
        "position": layer.position,
        "scale": layer.scale,
        "variant": layer.backend.variant(layer.requests[0]),
        "rejected": layer.rejected,
        "times_ms": {name: round(1000 * seconds, 3) for name, seconds in layer.times.items()},
        "gate": results if proved else "off",
    }


def _plain(value: Any) -> Any:
    """What JSON does not know: dtypes by their short name, sets in order, rules as they print."""
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return sorted(value) if isinstance(value, frozenset) else str(value)


def _cell(value: Any) -> str | int | float | bool | None:
    """A value of a table: mappings as one text."""
    if isinstance(value, dict):
        return "; ".join(f"{name}: {what}" for name, what in value.items())
    return str(value) if isinstance(value, list) else value
