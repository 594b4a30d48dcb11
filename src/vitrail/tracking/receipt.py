"""receipt.json: what each attention layer asked for, what it got and why, and on what machine."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vitrail.attention.backends import Request
from vitrail.tracking.atomic import write_json
from vitrail.tracking.kernel_watch import SeenKernels


@dataclass(frozen=True)
class LayerReceipt:
    """One attention layer.

    Args:
        pattern, position, scale: what the layer is made of, as text.
        requests: shapes, dtype, masks and whatever else decides who can serve each distinct call
            of the layer, the largest call first.
        requested: the backend that the config named.
        chosen: the backend that computes the layer.
        variant: which of several kernels behind that name, None where there is one.
        why: the reason for the choice in a few words.
        rejected: the reason against each backend that was considered and not chosen, by its name.
        times_ms: the median of each backend that was measured on the largest call.
        gate: how far each tensor of each call is from float64 and how far it may be, or "off".
    """

    requests: Sequence[Request]
    requested: str
    chosen: str
    why: str
    pattern: str = ""
    position: str = ""
    scale: str = ""
    variant: str | None = None
    rejected: Mapping[str, str] = field(default_factory=dict)
    times_ms: Mapping[str, float] = field(default_factory=dict)
    gate: Sequence[Mapping[str, Any]] | str = "off"


@dataclass(frozen=True)
class Receipt:
    """What computed a run.

    Args:
        environment: as `vitrail.tracking.environment.describe` gives it.
        precision: Lightning's name of it.
        compiled: whether the network ran under torch.compile.
        from_step: the optimizer step that this part of the run begins at, 0 unless it was resumed.
        layers: by the module's name.
        kernels: what the profiler saw, None until then.
        earlier: receipts of the parts of the run before it was resumed, the oldest first.
    """

    environment: Mapping[str, Any]
    precision: str
    compiled: bool
    layers: Mapping[str, LayerReceipt]
    kernels: SeenKernels | None = None
    from_step: int = 0
    earlier: Sequence[Mapping[str, Any]] = ()

    def rows(self) -> list[dict[str, Any]]:
        """One row a layer, for a table."""
        return [
            {
                "layer": name,
                "requested": layer.requested,
                "chosen": layer.chosen,
                "variant": layer.variant,
                "why": layer.why,
                "pattern": layer.pattern,
                "position": layer.position,
                "scale": layer.scale,
                "rejected": _joined(layer.rejected),
                "times_ms": _joined(layer.times_ms),
                "gate": _joined(_gate(layer)),
                **{name: _cell(value) for name, value in _fields(request).items()},
            }
            for name, layer in self.layers.items()
            for request in layer.requests[:1]
        ]

    def write(self, path: Path) -> None:
        """Write it as JSON, replacing an earlier one; raises OSError when it cannot."""
        write_json(path, _plain(_fields(self)))


def earlier_parts(path: Path) -> list[dict[str, Any]]:
    """The receipts in a file that a resumed run is about to replace, the oldest first."""
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [*before.pop("earlier", []), before]


def _gate(layer: LayerReceipt) -> Mapping[str, str]:
    """Each tensor's error on the largest call beside what is allowed."""
    if isinstance(layer.gate, str):
        return {"gate": layer.gate}
    return {
        name: f"{error:.1e} of {call['allowed'][name]:.1e}"
        for call in layer.gate[:1]
        for name, error in call["errors"].items()
    }


def _fields(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def _joined(parts: Mapping[str, Any]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in parts.items())


def _plain(value: Any) -> Any:
    """Containers that JSON knows; dtypes by their short name, rules as they print."""
    if isinstance(value, LayerReceipt | Request | SeenKernels):
        return _plain(_fields(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(_plain(item) for item in value)
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _cell(value: Any) -> str | int | float | bool | None:
    plain = _plain(value)
    return plain if plain is None or isinstance(plain, str | int | float) else str(plain)
