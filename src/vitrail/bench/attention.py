"""Speed of the attention backends by themselves: forward, and forward with backward."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from vitrail.attention import backends
from vitrail.attention.backends import Request, compute_capability
from vitrail.attention.sample import Sample
from vitrail.attention.stopwatch import Times, interleave
from vitrail.attention.tune import choose
from vitrail.bench.results import show, write

DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}
MASKS = {"none": frozenset(), "keys": frozenset({"keys"}), "dense": frozenset({"dense"})}


@dataclass(frozen=True, kw_only=True)
class AttentionBench:
    """Backends x shapes x dtypes x masks; within a combination, backends are timed in turn.

    backends: names, None for all. shapes: (B, h, N, d) each. dtypes: torch's names. masks: `none`,
    `keys` or `dense`. rounds: timed rounds of a combination. device: torch's device type.
    A backend that cannot serve a combination becomes a row with the reason and without times.
    Raises ValueError for what cannot be measured at all.
    """

    backends: Sequence[str] | None
    shapes: Sequence[Sequence[int]]
    dtypes: Sequence[str]
    masks: Sequence[str]
    rounds: int
    device: str

    def __post_init__(self):
        for name in ("shapes", "dtypes", "masks"):
            if not getattr(self, name):
                raise ValueError(f"bench.{name}=[] leaves nothing to measure; name one")
        for shape in self.shapes:
            if len(shape) != 4 or not all(isinstance(n, int) and n > 0 for n in shape):
                raise ValueError(
                    f"bench.shapes has {list(shape)}; a shape is [batch, heads, tokens, head width]"
                )
        for name, known in {"dtypes": DTYPES, "masks": MASKS}.items():
            for value in getattr(self, name):
                if value not in known:
                    raise ValueError(f"bench.{name} has {value}; use {', '.join(known)}")
        if self.rounds < 1:
            raise ValueError(f"bench.rounds={self.rounds} measures nothing; use 1 or more")
        present = torch.accelerator.is_available() and torch.accelerator.current_accelerator().type
        if self.device not in ("cpu", present):
            raise ValueError(f"bench.device={self.device} is not in this machine; use cpu")

    def run(self, folder: Path) -> None:
        """Print a table a combination and write results.csv and results.json into the folder."""
        rows = []
        for shape, dtype, mask in product(self.shapes, self.dtypes, self.masks):
            measured = self.measure(tuple(shape), dtype, mask)
            show(measured, title=f"(B, h, N, d) = {tuple(shape)}, {dtype}, mask: {mask}")
            rows += measured
        write(folder, rows)

    def measure(
        self, shape: tuple[int, int, int, int], dtype: str, mask: str
    ) -> list[dict[str, Any]]:
        """One row a backend: the fastest forward+backward first, refused ones last.

        auto: whether `backend=auto` chooses it.
        """
        batch, heads, tokens, width = shape
        request = Request(
            device=self.device,
            dtype=DTYPES[dtype],
            batch=batch,
            heads=heads,
            queries=tokens,
            keys=tokens,
            width=width,
            masks=MASKS[mask],
            compute=compute_capability(torch.device(self.device)),
        )
        able = {}
        refused = {}
        for name in self.backends or backends.names():
            if lacks := backends.lacks(name, request):
                refused[name] = f"cannot {' or '.join(lacks)}"
            else:
                able[name] = backends.load(name)
        chosen = choose(request).name
        trained, frozen = Sample.of(request), Sample.of(replace(request, backward=False))
        both = self._time({name: _step(trained, one) for name, one in able.items()})
        alone = self._time({name: _forward(frozen, one) for name, one in able.items()})
        cell = {"batch": batch, "heads": heads, "tokens": tokens, "width": width}
        cell |= {"dtype": dtype, "mask": mask, "device": self.device}
        order = sorted(able, key=lambda name: both[name].median)
        return [
            {"backend": name, **cell, **figures, "auto": name == chosen, "refused": why}
            for name, figures, why in (
                *((name, _figures(alone[name], both[name]), "") for name in order),
                *((name, _BLANK, why) for name, why in refused.items()),
            )
        ]

    def _time(self, functions: dict[str, Callable[[], object]]) -> dict[str, Times]:
        return interleave(functions, device=self.device, rounds=self.rounds)


def _step(sample: Sample, backend: backends.Backend) -> Callable[[], object]:
    return lambda: sample.backward(sample.forward(backend))


def _forward(sample: Sample, backend: backends.Backend) -> Callable[[], object]:
    return lambda: sample.forward(backend)


def _figures(forward: Times, both: Times) -> dict[str, float]:
    return {
        f"{name}_ms{suffix}": round(1000 * value, 4)
        for name, times in (("forward", forward), ("forward_backward", both))
        for suffix, value in zip(("", "_p10", "_p90"), (times.median, *times.band), strict=True)
    }


_BLANK = dict.fromkeys(_figures(Times((0.0,)), Times((0.0,))))
