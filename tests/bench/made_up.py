"""A measurement that measures nothing: its figures follow from what it is asked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf

from vitrail.bench import run
from vitrail.bench.harness import Summary
from vitrail.bench.report import Chart, Row


class MadeUpBench:
    """A cell for each number of tokens, in it a row a backend; `none` is refused everywhere.

    stop: the number of tokens at which Ctrl-C comes. note: a file that each measured cell is
    written into.
    """

    keys = ("backend", "tokens", "dtype")
    columns = ("forward_ms", "peak_mib", "auto")

    def __init__(
        self,
        *,
        config: DictConfig,
        folder: Path,
        tokens: Sequence[int],
        backends: Sequence[str],
        stop: int | None = None,
        note: str | None = None,
    ):
        self.tokens, self.backends, self.stop, self.note = tokens, backends, stop, note

    def cells(self) -> list[str]:
        return [f"{count} tokens, [bold]float32[/]" for count in self.tokens]

    def measure(self, cell: str) -> list[Row]:
        tokens = int(cell.split()[0])
        if tokens == self.stop:
            raise KeyboardInterrupt
        if self.note is not None:
            with Path(self.note).open("a") as file:
                file.write(f"{tokens}\n")
        return [row(name, tokens) for name in self.backends]

    def summary(self, rows: pd.DataFrame) -> Summary:
        counts = rows.groupby("backend")["tokens"].count().rename("cells").reset_index()
        chart = Chart("speed & <tokens>", rows, "tokens", "forward_ms", "backend", log=True)
        return {"How <often>": counts}, [chart]


def row(backend: str, tokens: int, **figures: Any) -> Row:
    """What the made-up measurement says of a backend; `none` is refused."""
    words = {"backend": backend, "tokens": tokens, "dtype": "float32"}
    if backend == "none":
        return {**words, "refused": "cannot run <b>here</b>", **figures}
    ms = tokens / 64 + len(backend)
    return {
        **words,
        "forward_ms": ms,
        "forward_ms_p10": 0.9 * ms,
        "forward_ms_p90": 1.1 * ms,
        "rounds_ms": [0.9 * ms, ms, 1.1 * ms],
        "peak_mib": 10.5,
        "auto": backend == "eager",
        "refused": "",
        **figures,
    }


def config(**changes: Any) -> DictConfig:
    """The config of a command that makes the measurement up; `changes` are keys of it."""
    bench = {
        "_target_": f"{MadeUpBench.__module__}.MadeUpBench",
        "tokens": [64, 197, 1024],
        "backends": ["eager", "größer", "none"],
    }
    whole = dict.fromkeys(("into", "compare", "runs", "ckpt_path"))
    whole |= {"logger": {}, "seed": 0, "bench": bench}
    return OmegaConf.merge(OmegaConf.create(whole), OmegaConf.create(changes))


def measured(folder: Path, **changes: Any) -> Path:
    """A folder with the results of a made-up measurement."""
    folder.mkdir(exist_ok=True)
    run(config(**changes), folder)
    return folder
