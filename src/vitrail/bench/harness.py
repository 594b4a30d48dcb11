"""A measurement, cell by cell: each is shown and kept as it is finished, and then all of them."""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
from hydra import compose
from omegaconf import DictConfig, ListConfig, OmegaConf
from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.text import Text

from vitrail.attention.selection import stopwatch
from vitrail.attention.selection.stopwatch import Times
from vitrail.bench import statistics
from vitrail.bench.report import ENDS, Chart, Report, Row, print_table, publish, table_of
from vitrail.bench.results import LOGGER, RESULTS, Results, Subject, lines_of
from vitrail.configuration import read_switches
from vitrail.errors import UserError
from vitrail.run.console import next_command
from vitrail.run.plan import build
from vitrail.startup import quiet_libraries
from vitrail.tracking import environment
from vitrail.tracking.loggers import open_loggers
from vitrail.tracking.wandb_run import WandbRun

PLACES = ("into", "compare", "runs")  # keys that say where results come from and go to
OF_BENCH = ("bench", *PLACES)  # what train.py does not know
MIN_ROUNDS = 3
WIDTH = 140  # columns of a line in a file, which has no edge
MOST_FIGURES = 100  # rows whose figures stand one by one in the summary of a W&B run
MOST_ROWS = 10_000  # of a table in W&B, which drops those beyond and does not say so


@dataclass(frozen=True)
class Summary:
    """What all rows together give: tables by title, and charts."""

    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    charts: Sequence[Chart] = ()


class Measurement(Protocol):
    """A kind of measurement, built from `config.bench` with the config and its folder.

    keys: the columns that say what was measured and tell a row from all others. columns: the others
    that people are shown.
    """

    keys: Sequence[str]
    columns: Sequence[str]

    def cells(self) -> Sequence[str]:
        """What will be measured, in order: a title each, equal in every process."""

    def measure(self, cell: str) -> list[Row]:
        """The rows of one cell; what cannot be measured has a reason under `refused`."""

    def summary(self, rows: pd.DataFrame) -> Summary:
        """What the rows with figures say."""


def measure(config: DictConfig, folder: Path, overrides: Sequence[str]) -> None:
    """Run the measurement of `config.bench`, or go on with the one that the folder holds.

    Args:
        config: the command's, with all that train.py takes.
        folder: where results go.
        overrides: as typed. Where `into` is all that they say, the folder brings its own config.

    Raises:
        UserError: the folder holds something else, or nothing can be measured.
    """
    quiet_libraries()
    config = _continued(config, folder, overrides)
    read_switches(config)
    if config.ckpt_path is not None:
        raise UserError(
            f"ckpt_path={config.ckpt_path} is not used by bench.py, which measures fresh weights; "
            "leave it out, or evaluate it with eval.py"
        )
    loggers = build(config.logger)
    measurement: Measurement = build(config.bench, _partial_=True)(config=config, folder=folder)
    results = Results(folder, _subject(config, overrides, measurement.keys))
    cells, console = measurement.cells(), console_of()
    begun = datetime.now()
    todo = [cell for cell in cells if cell not in results.cells]
    try:
        for number, cell in enumerate(todo):
            # Drawn between cells alone: a bar that moved by itself would take its time from what
            # is timed.
            done = len(cells) - len(todo) + number
            left = (datetime.now() - begun) / number * (len(todo) - number) if number else None
            about = "" if left is None else f", about {str(left).partition('.')[0]} left"
            console.print(ProgressBar(total=len(cells), completed=done, width=24), end=" ")
            console.print(Text(f"{done} of {len(cells)}{about}; now: {cell}"))
            results.add(cell, measurement.measure(cell))
            _show_cell(console, cell, results.cells[cell], measurement)
    except KeyboardInterrupt:
        print(f"stopped; go on with: {next_command('bench', into=folder)}")
        raise
    if not results.rows:
        raise UserError(f"bench={results.subject.bench} leaves nothing to measure; name more of it")
    _publish(console, folder, measurement, results, loggers)


def command(overrides: Sequence[str]) -> str:
    """This command with these overrides, as a person would type it in a shell."""
    started = Path(sys.argv[0])
    words = ["python", started.name] if started.suffix == ".py" else [started.name]
    return shlex.join([*words, *overrides])


def machine(about: Mapping[str, Any]) -> str:
    """A machine and its libraries in a few words, of what `environment.describe` gave."""
    cpu, gpu = about["cpu"], about["gpu"]
    name = f"{cpu['name']}, {cpu['threads']} of {cpu['cores']} cores"
    if gpu is not None:
        name = " + ".join(card["name"] for card in gpu["cards"])
    return f"{name}, torch {about['packages']['torch']}, vitrail {about['vitrail']}"


@dataclass(frozen=True, kw_only=True)
class TimedBench:
    """What measurements of members that take turns have in common.

    rounds: of each member, 3 at least. seconds: after which rounds may end. baseline: the member
    that others are compared with; where it is None or was refused, the fastest.
    """

    config: DictConfig
    folder: Path
    rounds: int
    seconds: float
    baseline: str | None
    clock: Callable[[str], float] = stopwatch.clock

    def __post_init__(self):
        if self.rounds < MIN_ROUNDS:
            raise UserError(f"bench.rounds must be >= {MIN_ROUNDS}, got {self.rounds}")
        if self.seconds <= 0:
            raise UserError(f"bench.seconds must be > 0, got {self.seconds}")

    def take_turns(
        self, functions: Mapping[str, Callable[[], object]], device: str
    ) -> dict[str, Times]:
        """Seconds of each, round by round."""
        how = {"rounds": self.rounds, "min_rounds": MIN_ROUNDS, "seconds": self.seconds}
        return stopwatch.interleave(functions, device=device, clock=self.clock, **how)

    def rows_of(self, times: Mapping[str, Times], column: str, steps: int = 1) -> dict[str, Row]:
        """Milliseconds of each of `steps` in a round, and the comparison; the fastest first."""
        rows, scale = {}, 1000 / steps
        order = sorted(times, key=lambda name: times[name].median)
        baseline = self.baseline if self.baseline in times else next(iter(order), None)
        for name in order:
            (low, high), seconds = times[name].band, times[name].seconds
            rows[name] = {
                column: scale * times[name].median,
                f"{column}_p10": scale * low,
                f"{column}_p90": scale * high,
                "rounds": len(seconds),
                "rounds_ms": [scale * second for second in seconds],
                "baseline": baseline,
            }
            if name != baseline:
                ratio = statistics.paired_ratio(seconds, times[baseline].seconds)
                said = statistics.verdict(ratio, "faster", "slower", even=1.0)
                rows[name] |= {**ratio.columns("time_ratio"), "verdict": said}
        return rows


def speed_columns(times: Times, images: int) -> Row:
    """Images a second, of so many in a round."""
    low, high = times.band
    return {
        "images_per_second": images / times.median,
        "images_per_second_p10": images / high,
        "images_per_second_p90": images / low,
    }


def check_names(**lists: Sequence[object] | None) -> None:
    """Raise UserError for an empty list under `bench`."""
    for name, values in lists.items():
        if values is not None and not values:
            raise UserError(f"bench.{name}=[] leaves nothing to measure; name one")


def check_one_device(config: DictConfig) -> None:
    """Raise UserError where a config asks for more devices than one, or may."""
    trainer = config.trainer
    if (trainer.devices, trainer.num_nodes, trainer.strategy) != (1, 1, "auto"):
        raise UserError(
            f"bench.py trains on one device, got trainer.devices={trainer.devices}; use "
            "trainer=auto, cpu or gpu"
        )


def choice(group: str, name: str) -> DictConfig | ListConfig:
    """What train.py is given by `group=name`; Hydra's own error where there is no such choice."""
    return compose("train", [f"{group}={name}"])[group]


def _continued(config: DictConfig, folder: Path, overrides: Sequence[str]) -> DictConfig:
    """The folder's own config where this command says no more than where that folder is."""
    if config.into is None:
        return config
    lines = lines_of(folder / RESULTS)
    if not lines:
        raise UserError(f"into={config.into} has no {RESULTS}; name a folder of a measurement")
    asked = {override.lstrip("+~").partition("=")[0].partition(".")[0] for override in overrides}
    if not asked <= {*PLACES, LOGGER}:
        return config
    own = [*PLACES, *([LOGGER] if LOGGER in asked else [])]
    return OmegaConf.create({**lines[0]["settings"], **{key: config[key] for key in own}})


def _subject(config: DictConfig, overrides: Sequence[str], keys: Sequence[str]) -> Subject:
    settings = OmegaConf.to_container(config, resolve=True)
    for key in PLACES:
        del settings[key]
    kind = config.bench._target_.rpartition(".")[2].removesuffix("Bench").lower()
    started = datetime.now().isoformat(timespec="seconds")
    return Subject(kind, settings, environment.describe(), command(overrides), started, keys)


def console_of() -> Console:
    """The terminal, or lines of one width for a file."""
    return Console(width=None if sys.stdout.isatty() else WIDTH)


def _show_cell(console: Console, title: str, rows: Sequence[Row], measurement: Measurement) -> None:
    """The columns that people are shown of a cell, and the reasons of what has no figures."""
    if measured := [row for row in rows if not row["refused"]]:
        print_table(console, title, _shown(table_of(measured), measurement))
    for row in rows:
        if row["refused"]:
            name = row[measurement.keys[0]]
            console.print(Text(f"{name}: {row['refused']}"), soft_wrap=True)


def _shown(frame: pd.DataFrame, measurement: Measurement) -> pd.DataFrame:
    names = [*measurement.keys, *measurement.columns]
    ends = [name + end for name in names for pair in ENDS for end in pair if name + end in frame]
    return frame.reindex(columns=[*names, *ends, "refused"])


def _publish(
    console: Console,
    folder: Path,
    measurement: Measurement,
    results: Results,
    loggers: Mapping[str, Any],
) -> None:
    """Files first: they are complete where a logger then fails."""
    subject, rows = results.subject, table_of(results.rows)
    measured = rows[rows.refused == ""]
    summary = Summary() if measured.empty else measurement.summary(measured)
    for title, frame in summary.tables.items():
        if not frame.empty:
            print_table(console, title, frame)
    report = Report(
        title=f"bench={subject.bench}",
        subtitle=f"{subject.started.replace('T', ' ')} on {machine(subject.environment)}",
        command=subject.command,
        rows=rows,
        tables={**summary.tables, "Results": _shown(rows, measurement)},
        charts=summary.charts,
        details={"Environment": subject.environment, "Config": subject.settings},
    )
    pictures = publish(folder, report)
    # Jobs of a sweep lie in numbered folders below one whose name they share.
    group = next(part for part in reversed(folder.resolve().parts) if not part.isdecimal())
    for name, factory in loggers.items():
        if isinstance(factory, WandbRun):
            named = {"group": factory.group or group, "name": factory.name or subject.bench}
            loggers = {**loggers, name: replace(factory, **named)}
    about = {"environment": subject.environment, **subject.settings}
    with open_loggers(loggers, folder, config=about, run_id=results.id, resumed_at=None) as opened:
        table = rows.astype(object).where(rows.notna(), None).to_dict("records")
        for start in range(0, len(table), MOST_ROWS):
            part = f"_{start // MOST_ROWS + 1}" if start else ""
            opened.show_table(f"results{part}", table[start : start + MOST_ROWS])
        for name, path in pictures.items():
            opened.show_picture(f"charts/{name}", path)
        if len(measured) <= MOST_FIGURES:
            opened.show_summary(_figures(measured, measurement))
        if opened.sync_command:
            print(f"W&B run: {opened.sync_command}")


def _figures(rows: pd.DataFrame, measurement: Measurement) -> dict[str, float]:
    """The shown figures by what tells their rows apart: `eager/float32/time_ms`."""
    keys = [key for key in measurement.keys if rows[key].nunique() > 1]
    return {
        "/".join([*map(str, name), column]): float(value)
        for column in rows.select_dtypes("number").columns.intersection(measurement.columns)
        for name, value in zip(rows[keys].itertuples(index=False), rows[column], strict=True)
        if pd.notna(value)
    }
