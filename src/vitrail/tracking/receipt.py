"""receipt.json: what each attention layer asked for, what it got and why, and on what machine."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
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
        request: shapes, dtype, mask kind and whatever else decides who can serve the layer.
        requested: the backend that the config named.
        chosen: the backend that computes the layer.
        why: the reason for the choice in a few words.
        rejected: the reason against each backend that was considered and not chosen, by its name.
    """

    request: Request
    requested: str
    chosen: str
    why: str
    rejected: Mapping[str, str]


@dataclass(frozen=True)
class Receipt:
    """What computed a run.

    Args:
        environment: as `vitrail.tracking.environment.describe` gives it.
        precision: Lightning's name of it.
        compiled: whether the network ran under torch.compile.
        layers: by the module's name.
        kernels: what the profiler saw, None until then.
    """

    environment: Mapping[str, Any]
    precision: str
    compiled: bool
    layers: Mapping[str, LayerReceipt]
    kernels: SeenKernels | None = None

    def rows(self) -> list[dict[str, Any]]:
        """One row a layer, for a table."""
        return [
            {
                "layer": name,
                "requested": layer.requested,
                "chosen": layer.chosen,
                "why": layer.why,
                "rejected": "; ".join(
                    f"{other}: {reason}" for other, reason in layer.rejected.items()
                ),
                **{key: _cell(value) for key, value in dataclasses.asdict(layer.request).items()},
            }
            for name, layer in self.layers.items()
        ]

    def write(self, path: Path) -> None:
        """Write it as JSON, replacing an earlier one; raises OSError when it cannot."""
        write_json(path, _plain(dataclasses.asdict(self)))


def _plain(value: Any) -> Any:
    """Containers that JSON knows; dtypes by their short name."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(_plain(item) for item in value)
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return value


def _cell(value: Any) -> str | int | float | bool | None:
    plain = _plain(value)
    return plain if plain is None or isinstance(plain, str | int | float) else str(plain)
