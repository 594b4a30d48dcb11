"""`bench=attention`: time, memory and error of one attention call of a layer, by every backend."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from typing import Any

import pandas as pd
import torch
import torch.compiler.config
from hydra import compose
from omegaconf import DictConfig

from vitrail.attention import backends
from vitrail.attention.backends import Refused, Request
from vitrail.attention.patterns import Pattern
from vitrail.attention.patterns.full import Full
from vitrail.attention.selection import tune
from vitrail.attention.selection.gate import Exact, FailedGate, measure_error
from vitrail.attention.selection.sample import Sample
from vitrail.bench.attention_call import AttentionCall, function_of, load, read_shape
from vitrail.bench.device import RESOLUTION_MIB, matmul_peak, peak_mib
from vitrail.bench.harness import Summary, TimedBench
from vitrail.bench.report import Chart, Row
from vitrail.bench.statistics import exponent
from vitrail.errors import UserError
from vitrail.model import ViT
from vitrail.run.plan import build, build_network, device_of
from vitrail.tracking.kernel_watch import ATTENTION, broken_promises, quiet_profile

DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}
MASKS = {
    "none": {"masks": frozenset()},
    "padding": {"masks": frozenset({"padding"})},
    "mask": {"masks": frozenset({"mask"})},
    "bias": {"masks": frozenset(), "bias": True},
}
PASSES = {"forward": False, "forward+backward": True}
COMPILED = "Torch-Compiled Region"  # how the profiler's name of what torch compiled begins
FIGURES = {"time": "time_ms", "peak": "peak_mib"}  # that grow with the number of tokens
# What the lines of a chart over the number of tokens have in common.
SERIES = ["pass", "batch", "heads", "width", "mask", "pattern", "compiled", "device"]


@dataclass(frozen=True, kw_only=True)
class AttentionBench(TimedBench):
    """Backends x shapes x dtypes x masks x patterns; in a cell the backends take turns.

    A backend that cannot serve a cell, fails its gate, is computed by other kernels than it
    promises, or finds too little memory becomes a row with the reason. What a position adds inside
    a layer is not part of a call; a relative one is like mask `bias`.

    The keys are described in configs/bench/attention.yaml. Raises UserError for what cannot be
    measured, before anything is.
    """

    backends: Sequence[str] | None
    shapes: Sequence[Sequence[int | Sequence[int]]] | None
    dtypes: Sequence[str]
    masks: Sequence[str]
    patterns: Sequence[str | Pattern] | None

    keys = (
        "backend", "pass", "batch", "heads", "tokens", "width", "map", "dtype", "mask", "pattern",
        "compiled", "device",
    )  # fmt: skip
    columns = (
        "time_ms", "time_ratio", "verdict", "baseline", "peak_mib", "gflops_per_s",
        "matmul_percent", "matmul_dtype", "max_error", "relative_error", "first_call_s", "auto",
    )  # fmt: skip

    def __post_init__(self):
        super().__post_init__()
        for name, known in {"dtypes": DTYPES, "masks": MASKS}.items():
            for value in getattr(self, name):
                if value not in known:
                    raise UserError(f"bench.{name} takes {', '.join(known)}, got {value}")
        for name in (*(self.backends or ()), *filter(None, [self.baseline])):
            backends.load(name)  # raises for an unknown name, with those that there are
        self.cells()

    def cells(self) -> Sequence[str]:
        return list(self._cells)

    def measure(self, cell: str) -> list[Row]:
        """A row a pass and backend, the fastest first, refused ones last."""
        torch.compiler.reset()  # what was compiled for another cell counts against a limit
        words, call = self._cells[cell]
        return [
            {"backend": row["backend"], "pass": name} | words | row
            for name, backward in PASSES.items()
            for row in self._rows(replace(call, backward=backward))
        ]

    def summary(self, rows: pd.DataFrame) -> Summary:
        """Growth with the number of tokens where there are several: exponents and charts."""
        rows = rows.assign(line=rows.backend + ", " + rows.dtype).sort_values("tokens")
        # What a process's count cannot tell from nothing is no figure to fit.
        near_zero = (rows.device == "cpu") & (rows.peak_mib <= RESOLUTION_MIB)
        rows["peak_mib"] = rows.peak_mib.mask(near_zero)
        charts, growth = [], []
        for series, part in rows.groupby(SERIES, sort=False):
            if part.tokens.nunique() < 2:
                continue
            words = dict(zip(SERIES, series, strict=True))
            title = "{pass}, ({batch}, {heads}, N, {width}), mask {mask}, {pattern}"
            title = title.format(**words) + ", compiled" * words["compiled"]
            for name, column in FIGURES.items():
                chart = f"{name} of {title}"
                charts.append(Chart(chart, part, "tokens", column, "line", log=True))
            for line, own in part.groupby("line", sort=False):
                row = {"backend, dtype": line, **words}
                for name, column in FIGURES.items():
                    there = own.dropna(subset=[column]).astype({"tokens": float, column: float})
                    if power := exponent(there.tokens, there[column]):
                        row |= power.columns(f"{name}_exponent")
                growth += [row] * ("time_exponent" in row)
        return {"Growth: figure = c * tokens ** exponent": pd.DataFrame(growth)}, charts

    @cached_property
    def _cells(self) -> dict[str, tuple[Row, AttentionCall]]:
        """The calls by title, each with the columns that tell it from others."""
        own = self.shapes is None
        shapes = [shape_of_model(self.config)] if own else [*map(read_shape, self.shapes)]
        device, cells = device_of(self.config.trainer.accelerator).type, {}
        for shape, dtype, mask, pattern in product(
            shapes, self.dtypes, self.masks, self._patterns()
        ):
            how = {"dtype": DTYPES[dtype], "pattern": pattern, "device": device, **MASKS[mask]}
            call = AttentionCall(**shape, **how)
            if pattern != Full() and not call.map:
                raise UserError(
                    f"{pattern} needs a map, and bench.shapes has {call.grid.tokens} tokens "
                    "without one; write them as [rows, cols]"
                )
            words = {
                "batch": call.batch, "heads": call.heads, "tokens": call.grid.tokens,
                "width": call.width, "map": call.map, "dtype": dtype, "mask": mask,
                "pattern": str(pattern), "compiled": self.config.compile, "device": device,
            }  # fmt: skip
            cells[f"{call.shape}, {dtype}, mask {mask}, {pattern}"] = words, call
        return cells

    def _patterns(self) -> list[Pattern]:
        """Each pattern once; of a plan of several layers, each layer's."""
        found = []
        for node in [self.config.pattern] if self.patterns is None else self.patterns:
            chosen = (
                compose("train", [f"pattern={node}"]).pattern if isinstance(node, str) else node
            )
            pattern = chosen if isinstance(chosen, Pattern) else build(chosen)
            found += pattern if isinstance(pattern, list) else [pattern]
        return list(dict.fromkeys(found))

    def _rows(self, call: AttentionCall) -> list[Row]:
        sample, exact = call.sample(), cache(Exact.of)
        functions, figures, refused = {}, {}, {}
        for name in self.backends or backends.names():
            try:
                functions[name], figures[name] = self._prepared(name, call, sample, exact)
            except (Refused, FailedGate, MemoryError, RuntimeError) as reason:
                refused[name] = str(reason).partition("\n")[0]
        times = self.take_turns(functions, call.device)
        auto, (peak, dtype) = _chosen(call, refused), matmul_peak(call.dtype, call.device)
        rows = []
        for name, row in self.rows_of(times, "time_ms").items():
            speed = call.operations / times[name].median
            row |= {"gflops_per_s": speed / 1e9, "matmul_gflops_per_s": peak / 1e9}
            row |= {"matmul_dtype": dtype, "matmul_percent": 100 * speed / peak}
            rows.append({"backend": name, **row, **figures[name], "auto": name == auto})
        refusals = [{"backend": name, "refused": why} for name, why in refused.items()]
        return [{"refused": "", **row} for row in rows + refusals]

    def _prepared(
        self, name: str, call: AttentionCall, sample: Sample, exact: Callable[[Request], Exact]
    ) -> tuple[Callable[[], object], Row]:
        """One call by a backend that is able and proved, and its figures but for the time.

        exact: the exact tensors of a request, which backends share. Raises Refused, FailedGate,
        MemoryError, or a RuntimeError of the kernel: why there is nothing to time.
        """
        for request in call.requests:
            if lacks := backends.lacks(name, request):
                raise Refused(f"cannot {' or '.join(lacks)}")
        compiled = self.config.compile
        backend = load(name, compiled)
        # First, since on a CPU it is another process that dies of too much.
        peak = peak_mib(function_of, call, name, compiled, device=call.device)
        results = [measure_error(backend, exact(request)) for request in call.requests]
        for result in results:
            if not result.passed:
                raise FailedGate(f"fails the gate: {result}")
        function, start = call.function(backend, sample), self.clock(call.device)
        # What was compiled before, in this process or in another, makes the first call no shorter.
        with warnings.catch_warnings(), torch.compiler.config.patch(force_disable_caches=True):
            warnings.filterwarnings("ignore", "dynamo_pgo force disabled", UserWarning)
            function()
        first_call_s = self.clock(call.device) - start
        with quiet_profile(call.device) as profiled:
            function()
            self.clock(call.device)  # waits for the device
        seen = {event.name for event in profiled.function_events}
        for request in call.requests:
            promise = backend.kernels(request, compiled=compiled)
            if broken := broken_promises({name: promise}, seen):
                raise Refused("; ".join(broken))
        kernels = [e for e in seen if e.startswith(COMPILED) or ATTENTION.search(e)]
        return function, {
            "peak_mib": peak,
            "max_error": max(max(result.largest.values()) for result in results),
            "relative_error": max(max(result.relative.values()) for result in results),
            "kernels": ", ".join(sorted(kernels)),
            "first_call_s": first_call_s,
        }


def shape_of_model(config: DictConfig) -> dict[str, Any]:
    """See `read_shape`; that of the first layer of `config.model` on a batch of `config.data`."""
    with torch.device("meta"):
        network = build_network(config, config.model.num_classes or 1, pretrained=False)
    if not isinstance(network, ViT):
        raise UserError(
            f"bench.shapes=null takes a vit model's shape, got {type(network).__name__}; use a vit "
            "model, or name shapes as [[batch, heads, tokens, head width]]"
        )
    layer, batch = network.blocks[0].attn, config.data.batch_size
    return {"batch": batch, "heads": layer.heads, "grid": network.grid, "width": layer.width}


def _chosen(call: AttentionCall, refused: Mapping[str, str]) -> str | None:
    """What `backend=auto` takes for such a layer: the fastest on its largest call, if it is any."""
    lacking = {n for n in backends.names() for one in call.requests if backends.lacks(n, one)}
    with suppress(Refused):
        without = {**refused, **dict.fromkeys(lacking, "cannot serve every call")}
        return tune.choose(call.requests[0], without=without).name
    return None
