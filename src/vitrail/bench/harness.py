"""A measurement, cell by cell: each is shown and kept as it is finished, and then all of them."""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.text import Text

from vitrail.attention.selection import stopwatch
from vitrail.attention.selection.stopwatch import Times
from vitrail.bench.report import Chart, Report, Row, print_table, publish, table_of
from vitrail.bench.results import LOGGER, RESULTS, Results, Subject, lines_of
from vitrail.bench.statistics import BAND, ENDS, Interval, paired_ratio, verdict
from vitrail.configuration import read_switches
from vitrail.errors import UserError
from vitrail.run.console import next_command
from vitrail.run.plan import build
from vitrail.startup import quiet_libraries
from vitrail.tracking import environment
from vitrail.tracking.loggers import open_loggers
from vitrail.tracking.wandb_run import WandbRun

PLACES = ("into", "compare", "runs")  # keys that say where results come from and go to
MIN_ROUNDS = 3
WIDTH = 140  # columns of a line in a file, which has no edge
MOST_FIGURES = 100  # rows whose figures stand one by one in the summary of a W&B run
MOST_ROWS = 10_000  # of a table in W&B, which drops those beyond and does not say so

Summary = tuple[Mapping[str, pd.DataFrame], Sequence[Chart]]  # tables by title, and charts


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
        """What the rows with figures say together."""


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
    cells, console, begun = measurement.cells(), console_of(), datetime.now()
    todo = [cell for cell in cells if cell not in results.cells]
    try:
        for number, cell in enumerate(todo):
            # Between cells alone: a bar that moves takes its time from what is timed.
            left = (datetime.now() - begun) / max(number, 1) * (len(todo) - number)
            about = f", about {str(left).partition('.')[0]} left" * bool(number)
            done = f"{len(cells) - len(todo) + number} of {len(cells)}"
            console.print(Text(f"{done}{about}; now: {cell}"))
            results.add(cell, measurement.measure(cell))
            _show_cell(console, cell, results.cells[cell], measurement)
    except KeyboardInterrupt:
        print(f"stopped; go on with: {next_command('bench', into=folder)}")
        raise
    if not results.rows:
        raise UserError(f"bench={results.subject.bench} leaves nothing to measure; name more of it")
    _publish(measurement, results, loggers)


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


def console_of() -> Console:
    """The terminal, or lines of one width for a file."""
    return Console(width=None if sys.stdout.isatty() else WIDTH)


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
        for name in (field.name for field in fields(self) if getattr(self, field.name) == []):
            raise UserError(f"bench.{name}=[] leaves nothing to measure; name one")

    def take_turns(
        self, functions: Mapping[str, Callable[[], object]], device: str
    ) -> dict[str, Times]:
        """Seconds of each, round by round."""
        how = {"rounds": self.rounds, "min_rounds": MIN_ROUNDS, "seconds": self.seconds}
        return stopwatch.interleave(functions, device=device, clock=self.clock, **how)

    def rows_of(
        self, times: Mapping[str, Times], column: str, *, steps: int = 1, images: int | None = None
    ) -> dict[str, Row]:
        """Milliseconds of each of `steps` in a round, and the comparison; the fastest first.

        images: in a round, of which a second's are told.
        """
        rows, scale = {}, 1000 / steps
        order = sorted(times, key=lambda name: times[name].median)
        baseline = self.baseline if self.baseline in times else next(iter(order), None)
        for name in order:
            seconds, (low, high) = times[name].seconds, times[name].band
            rows[name] = {
                **Interval(times[name].median, low, high).scaled(scale).columns(column, BAND),
                "rounds": len(seconds),
                "rounds_ms": [scale * second for second in seconds],
                "baseline": baseline,
            }
            if images is not None:
                speed = Interval(1 / times[name].median, 1 / high, 1 / low).scaled(images)
                rows[name] |= speed.columns("images_per_second", BAND)
            if name != baseline:
                ratio = paired_ratio(seconds, times[baseline].seconds)
                said = verdict(ratio, "faster", "slower", even=1.0)
                rows[name] |= {**ratio.columns("time_ratio"), "verdict": said}
        return rows


def check_one_device(config: DictConfig) -> None:
    """Raise UserError where a config asks for more devices than one, or may."""
    trainer = config.trainer
    if (trainer.devices, trainer.num_nodes, trainer.strategy) != (1, 1, "auto"):
        raise UserError(
            f"bench.py trains on one device, got trainer.devices={trainer.devices}; use "
            "trainer=auto, cpu or gpu"
        )


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
    own = {*PLACES, *asked}
    return OmegaConf.create({**lines[0]["settings"], **{key: config[key] for key in own}})


def _subject(config: DictConfig, overrides: Sequence[str], keys: Sequence[str]) -> Subject:
    settings = OmegaConf.to_container(config, resolve=True)
    for key in PLACES:
        del settings[key]
    kind = config.bench._target_.rpartition(".")[2].removesuffix("Bench").lower()
    started = datetime.now().isoformat(timespec="seconds")
    return Subject(kind, settings, environment.describe(), command(overrides), started, keys)


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
    ends = [name + end for name in names for end in (*BAND, *ENDS) if name + end in frame]
    return frame.reindex(columns=[*names, *ends, "refused"])


def _publish(measurement: Measurement, results: Results, loggers: Mapping[str, Any]) -> None:
    """Files first: they are complete where a logger then fails."""
    folder, subject, rows = results.path.parent, results.subject, table_of(results.rows)
    measured = rows[rows.refused == ""]
    tables, charts = ({}, ()) if measured.empty else measurement.summary(measured)
    for title, frame in tables.items():
        if not frame.empty:
            print_table(console_of(), title, frame)
    report = Report(
        title=f"bench={subject.bench}",
        subtitle=f"{subject.started.replace('T', ' ')} on {machine(subject.environment)}",
        command=subject.command,
        rows=rows,
        tables={**tables, "Results": _shown(rows, measurement)},
        charts=charts,
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
