"""A measurement that measures nothing: its figures follow from what it is asked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from vitrail.bench import run
from vitrail.bench.measurement import Cell, Chart, Context, Findings, Point, Row


class MadeUp:
    """A cell for each number of tokens, in it a row a backend; `none` is refused everywhere.

    stop: the number of tokens at which Ctrl-C comes. note: a file that each measured cell is
    written into.
    """

    keys = ("backend", "tokens", "dtype")
    columns = ("backend", "forward_ms", "peak_mib", "auto")

    def __init__(
        self,
        *,
        context: Context,
        tokens: Sequence[int],
        backends: Sequence[str],
        stop: int | None = None,
        note: str | None = None,
    ):
        self.context, self.tokens, self.backends = context, tokens, backends
        self.stop, self.note = stop, note

    def cells(self) -> list[Cell]:
        return [
            Cell(f"tokens={count}", f"{count} tokens, [bold]float32[/]") for count in self.tokens
        ]

    def measure(self, cell: Cell) -> list[Row]:
        tokens = int(cell.key.partition("=")[2])
        if tokens == self.stop:
            raise KeyboardInterrupt
        if self.note is not None:
            with Path(self.note).open("a") as file:
                file.write(f"{cell.key}\n")
        return [row(name, tokens) for name in self.backends]

    def findings(self, rows: Sequence[Row]) -> Findings:
        lines: dict[str, list[Point]] = {}
        for one in rows:
            if not one["refused"]:
                ends = one["forward_ms_p10"], one["forward_ms_p90"]
                point = Point(one["tokens"], one["forward_ms"], *ends)
                lines.setdefault(one["backend"], []).append(point)
        chart = Chart(
            "speed_vs_tokens", "Speed", "tokens", "forward, ms", lines, log=True, note="n²"
        )
        return Findings([chart], ["eager & <sdpa> differ"], {"made_up/eager/forward_ms": 1.5})


def row(backend: str, tokens: int, **figures: Any) -> Row:
    """What the made-up measurement says of a backend; `none` is refused."""
    refused = backend == "none"
    ms = None if refused else tokens / 64 + len(backend)
    return {
        "backend": backend,
        "tokens": tokens,
        "dtype": "float32",
        "forward_ms": ms,
        "forward_ms_p10": None if refused else 0.9 * ms,
        "forward_ms_p90": None if refused else 1.1 * ms,
        "peak_mib": None if refused else 10.0,
        "auto": backend == "eager",
        "refused": "cannot run <b>here</b>" if refused else "",
        **figures,
    }


def config(**changes: Any) -> DictConfig:
    """The config of a command that makes the measurement up; `changes` are keys of it."""
    bench = {
        "_target_": f"{MadeUp.__module__}.MadeUp",
        "tokens": [64, 197, 1024],
        "backends": ["eager", "sdpa_flash", "none"],
    }
    whole = dict.fromkeys(("into", "compare", "runs", "ckpt_path"))
    whole |= {"logger": {}, "seed": 0, "bench": bench}
    return OmegaConf.merge(OmegaConf.create(whole), OmegaConf.create(changes))


def measured(folder: Path, **changes: Any) -> Path:
    """A folder with the results of a made-up measurement."""
    folder.mkdir(exist_ok=True)
    run(config(**changes), folder)
    return folder
