"""Measure cell by cell, each kept when it is finished, and leave what all of them say."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from vitrail.bench.measurement import Context, Measurement, Row
from vitrail.bench.outcome import command, leave
from vitrail.bench.report import Page, Table, machine
from vitrail.bench.results import CELLS, LOGGER, Results, Subject, check, settings_in
from vitrail.bench.screen import Screen
from vitrail.bench.tracking import track
from vitrail.configuration import read_switches
from vitrail.errors import UserError
from vitrail.run.console import next_command
from vitrail.run.plan import build_loggers
from vitrail.startup import quiet_libraries
from vitrail.tracking import environment
from vitrail.tracking.loggers import LoggerFactory

# Keys that say where results come from and go to, and change none of them.
ASIDE = ("into", "compare", "runs", LOGGER)


def measure(config: DictConfig, folder: Path, overrides: Sequence[str]) -> None:
    """Run the measurement of `config.bench`, or go on with the one that the folder holds.

    overrides: as typed. Where `into` is all that they say, the folder brings its own config.
    Raises UserError where the folder holds something else, or nothing could be measured.
    """
    quiet_libraries()
    config = _continued(config, folder, overrides)
    read_switches(config)
    if config.ckpt_path is not None:
        raise UserError(
            f"ckpt_path={config.ckpt_path} has no use here: what is measured begins from its own "
            "weights; leave it out, or evaluate it with eval.py"
        )
    factories = build_loggers(config)
    subject = _subject(config, overrides)
    check(folder, subject)
    build = instantiate(config.bench, _partial_=True, _convert_="all")
    measurement: Measurement = build(context=Context(config, folder))
    cells = measurement.cells()
    results = Results(folder, subject)
    screen = Screen(measurement.keys, measurement.columns, len(cells))
    try:
        for cell in cells:
            if results.cell(cell.key) is not None:
                screen.kept(cell)
                continue
            screen.begin(cell)
            screen.measured(cell, results.add(cell.key, measurement.measure(cell)))
    except KeyboardInterrupt:
        print(f"stopped; go on with: {next_command('bench', into=folder)}")
        raise
    if not results.rows:
        raise UserError(f"bench={results.subject.bench} leaves nothing to measure; name more of it")
    _publish(factories, folder, measurement, results)


def _publish(
    factories: Mapping[str, LoggerFactory], folder: Path, measurement: Measurement, results: Results
) -> None:
    """Files first: they are complete where a logger then fails."""
    subject, rows = results.subject, results.rows
    findings = measurement.findings(rows)
    about = {
        "bench": subject.bench,
        "started": subject.started,
        "environment": subject.environment,
        "config": subject.settings,
        "keys": [*measurement.keys],
        "figures": dict(findings.figures),
    }
    refused = sum(bool(row["refused"]) for row in rows)
    page = Page(
        title=f"bench={subject.bench}",
        subtitle=f"{subject.started.replace('T', ' ')} on {machine(subject.environment)}",
        command=subject.command,
        sentences=findings.sentences,
        charts=findings.charts,
        tables=[
            Table(
                f"Results, {refused} of {len(rows)} rows with a reason instead of figures"
                if refused
                else "Results",
                rows,
                measurement.keys,
                measurement.columns,
            ),
            Table("All columns", rows, measurement.keys, list(rows[0]), folded=True),
            Table("Figures for comparison", _figures(findings.figures), ["figure"], ["value"]),
        ],
        details={"Environment": subject.environment, "Config": subject.settings},
    )
    pictures = leave(folder, page, rows, about)
    sync_command = track(
        factories,
        folder,
        name=subject.bench,
        run_id=results.id,
        about={"environment": subject.environment, **subject.settings},
        rows=rows,
        figures=findings.figures,
        pictures=pictures,
    )
    if sync_command:
        print(f"W&B run: {sync_command}")


def _continued(config: DictConfig, folder: Path, overrides: Sequence[str]) -> DictConfig:
    """The folder's own config where this command says no more than where that folder is."""
    asked = {override.lstrip("+~").partition("=")[0].partition(".")[0] for override in overrides}
    settings = settings_in(folder)
    if config.into is not None and settings is None:
        raise UserError(
            f"into={config.into} holds no measurement to go on with; name a folder that has {CELLS}"
        )
    if config.into is None or not asked <= {*ASIDE}:
        return config
    own = [key for key in ASIDE if key != LOGGER or key in asked or key not in settings]
    return OmegaConf.create({**settings, **{key: config[key] for key in own}})


def _subject(config: DictConfig, overrides: Sequence[str]) -> Subject:
    settings = OmegaConf.to_container(config, resolve=True)
    for key in {*ASIDE} - {LOGGER}:
        del settings[key]
    kind = config.bench._target_.split(".")[-2]  # the module that measures: attention, step, …
    started = datetime.now().isoformat(timespec="seconds")
    return Subject(kind, settings, environment.describe(), command(overrides), started)


def _figures(figures: Mapping[str, float]) -> list[Row]:
    return [{"figure": name, "value": value} for name, value in figures.items()]
