"""The attention backends by themselves: time, memory and error of one call of a layer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig

from vitrail.attention import backends
from vitrail.attention.backends import Refused
from vitrail.attention.patterns import Pattern
from vitrail.attention.patterns.full import Full
from vitrail.attention.selection import tune
from vitrail.attention.selection.gate import Exact, FailedGate
from vitrail.attention.selection.stopwatch import Times, clock, interleave
from vitrail.bench.attention_call import AttentionCall
from vitrail.bench.attention_findings import findings
from vitrail.bench.attention_member import Member, admit
from vitrail.bench.choices import choice
from vitrail.bench.matmul_peak import matmul_peak
from vitrail.bench.measurement import Cell, Context, Findings, Row, Value
from vitrail.bench.rounds import LEAST, check_rounds
from vitrail.bench.shapes import Shape
from vitrail.errors import UserError
from vitrail.model import ViT
from vitrail.run.plan import build_network, device_of

DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}
MASKS = {
    "none": {"masks": frozenset()},
    "padding": {"masks": frozenset({"padding"})},
    "mask": {"masks": frozenset({"mask"})},
    "bias": {"masks": frozenset(), "bias": True},
}
# Positions that a call is not changed by, since they speak at the model's entrance or not at all.
OUTSIDE = ("none", "learned", "sincos")
PASSES = {"forward": False, "forward+backward": True}


@dataclass(frozen=True, kw_only=True)
class AttentionBench:
    """Backends x shapes x dtypes x masks x patterns; in a cell the backends are timed in turn.

    backends: names, None for all. shapes: [B, h, N, d] each; for a pattern, N is [rows, cols] or
    [rows, cols, prefix]. None takes that of the config's model on its data. dtypes: torch's names.
    masks: `none`, `padding`, `mask` or `bias` (learned). patterns: choices of
    configs/pattern, or patterns; None takes the config's own. rounds: timed rounds of a cell.
    seconds: a cell's rounds end with the one in which so many have passed, though not before the
    third. read: see `interleave`.

    A backend that cannot serve a cell, fails its gate, is computed by other kernels than it
    promises, or finds too little memory becomes a row with the reason and without figures. Raises
    ValueError for what cannot be measured at all.
    """

    context: Context
    backends: Sequence[str] | None
    shapes: Sequence[Sequence[int | Sequence[int]]] | None
    dtypes: Sequence[str]
    masks: Sequence[str]
    patterns: Sequence[str | Pattern] | None
    rounds: int
    seconds: float
    read: Callable[[str], float] = clock

    keys = (
        "backend", "pass", "batch", "heads", "tokens", "width", "map", "dtype", "mask", "pattern",
        "compiled", "device",
    )  # fmt: skip
    columns = (
        "backend", "pass", "time_ms", "peak_mib", "gflops_per_s", "matmul_share", "max_error",
        "relative_error", "auto",
    )  # fmt: skip

    def __post_init__(self):
        for name in ("backends", "shapes", "dtypes", "masks", "patterns"):
            if getattr(self, name) is not None and not getattr(self, name):
                raise UserError(f"bench.{name}=[] leaves nothing to measure; name one")
        for name, known in {"dtypes": DTYPES, "masks": MASKS}.items():
            for value in getattr(self, name):
                if value not in known:
                    raise UserError(f"bench.{name} has {value}; use {', '.join(known)}")
        check_rounds(self.rounds, self.seconds)
        for name in self.backends or ():
            if name not in backends.names():
                backends.load(name)  # or it says which there are
        self.cells()  # finds what else cannot be measured before anything is

    def cells(self) -> Sequence[Cell]:
        return [Cell(title, title) for title in self._cells]

    def measure(self, cell: Cell) -> list[Row]:
        """A row a pass and backend: the fastest first, refused ones last."""
        torch.compiler.reset()  # what was compiled for another cell counts against a limit
        words, call = self._cells[cell.key]
        return [
            words | {"pass": name} | row
            for name, backward in PASSES.items()
            for row in self._rows(replace(call, backward=backward))
        ]

    def findings(self, rows: Sequence[Row]) -> Findings:
        found = findings(rows)
        position = self.context.config.position._target_.split(".")[-2]
        if position in OUTSIDE:
            return found
        apart = (
            f"position={position} is no part of these calls (a relative one is like mask bias); "
            "bench=step measures it with the whole model."
        )
        return replace(found, sentences=[*found.sentences, apart])

    @cached_property
    def _cells(self) -> dict[str, tuple[Row, AttentionCall]]:
        """The calls that are measured, each with the words that tell it from others, by title."""
        device = device_of(self.context.config.trainer.accelerator).type
        cells = {}
        for shape, dtype, mask, pattern in product(
            self._all_shapes(), self.dtypes, self.masks, self._all_patterns()
        ):
            if pattern != Full() and not shape.has_map:
                raise UserError(
                    f"{pattern} needs a map, and bench.shapes has {shape.grid.tokens} tokens "
                    "without one; write them as [rows, cols]"
                )
            call = AttentionCall(
                shape=shape, dtype=DTYPES[dtype], pattern=pattern, device=device, **MASKS[mask]
            )
            words = {
                "batch": shape.batch,
                "heads": shape.heads,
                "tokens": shape.grid.tokens,
                "width": shape.width,
                "map": shape.map,
                "dtype": dtype,
                "mask": mask,
                "pattern": str(pattern),
                "compiled": self.context.config.compile,
                "device": device,
            }
            cells[f"{shape}, {dtype}, mask {mask}, {pattern}"] = words, call
        return cells

    def _all_shapes(self) -> list[Shape]:
        if self.shapes is None:
            return [_shape_of_model(self.context.config)]
        return [Shape.read(shape) for shape in self.shapes]

    def _all_patterns(self) -> list[Pattern]:
        """Each pattern once; of a plan of several layers, each layer's."""
        nodes = [self.context.config.pattern]
        if self.patterns is not None:
            nodes = [
                choice("pattern", one) if isinstance(one, str) else one for one in self.patterns
            ]
        found = []
        for node in nodes:
            pattern = node if isinstance(node, Pattern) else instantiate(node, _convert_="all")
            found += pattern if isinstance(pattern, list) else [pattern]
        return list(dict.fromkeys(found))

    def _rows(self, call: AttentionCall) -> list[Row]:
        members, refused = self._members(call)
        auto = _chosen(call, refused)
        times = interleave(
            {name: member.function for name, member in members.items()},
            device=call.device,
            rounds=self.rounds,
            min_rounds=LEAST,
            seconds=self.seconds,
            clock=self.read,
        )
        order = sorted(members, key=lambda name: times[name].median)
        figures = {name: _figures(call, members[name], times[name]) for name in order}
        figures |= dict.fromkeys(refused, dict.fromkeys(FIGURES))
        return [
            {"backend": name}
            | figures[name]
            | {"auto": name == auto, "refused": refused.get(name, "")}
            for name in figures
        ]

    def _members(self, call: AttentionCall) -> tuple[dict[str, Member], dict[str, str]]:
        """The backends that may be timed, and the reason against each other one."""
        able, refused = {}, {}
        sample, trial = call.sample(), cache(Exact.of)
        for name in self.backends or backends.names():
            try:
                able[name] = admit(
                    name,
                    call,
                    sample,
                    trial,
                    compiled=self.context.config.compile,
                    read=self.read,
                )
            except (Refused, FailedGate, MemoryError, RuntimeError) as reason:
                refused[name] = str(reason).partition("\n")[0]
        return able, refused


def _shape_of_model(config: DictConfig) -> Shape:
    """That of the layers of `config.model` on a batch of `config.data`."""
    with torch.device("meta"):
        network = build_network(config, config.model.num_classes or 1, pretrained=False)
    if not isinstance(network, ViT):
        raise UserError(
            f"bench.shapes=null takes the model's, and {type(network).__name__} brings its own "
            "attention; use a vit model, or name shapes as [[batch, heads, tokens, head width]]"
        )
    layer = network.blocks[0].attn
    return Shape(config.data.batch_size, layer.heads, network.grid, layer.width)


def _chosen(call: AttentionCall, refused: Mapping[str, str]) -> str | None:
    """What `backend=auto` takes for such a layer: the fastest on its largest call, if it is any."""
    largest, *smaller = call.requests
    without = dict(refused)
    for request in smaller:
        for name in backends.names():
            if lacks := backends.lacks(name, request):
                without[name] = f"cannot {' or '.join(lacks)}"
    try:
        return tune.choose(largest, without=without).name
    except Refused:
        return None


def _figures(call: AttentionCall, member: Member, times: Times) -> dict[str, Value]:
    low, high = times.band
    speed, peak = call.operations / times.median, matmul_peak(call.dtype, call.device)
    return {
        "time_ms": _short(1000 * times.median),
        "time_ms_p10": _short(1000 * low),
        "time_ms_p90": _short(1000 * high),
        "rounds": len(times.seconds),
        "peak_mib": None if member.peak_mib is None else _short(member.peak_mib),
        "gflops_per_s": _short(speed / 1e9),
        "matmul_gflops_per_s": _short(peak / 1e9),
        "matmul_share": _short(speed / peak),
        "compile_s": _short(member.first_s - times.median) if member.compiles else None,
        "max_error": _short(member.distance[0]),
        "relative_error": _short(member.distance[1]),
        "kernels": ", ".join(member.kernels),
    }


FIGURES = (
    "time_ms", "time_ms_p10", "time_ms_p90", "rounds", "peak_mib", "gflops_per_s",
    "matmul_gflops_per_s", "matmul_share", "compile_s", "max_error", "relative_error", "kernels",
)  # fmt: skip


def _short(value: float) -> float:
    """Four digits."""
    return float(f"{value:.4g}")
