"""What a measurement shows in W&B and in the other loggers: one run, in the group of its folder."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.bench.measurement import Row
from vitrail.tracking.loggers import LoggerFactory, open_loggers
from vitrail.tracking.wandb_run import WandbRun

MOST_ROWS = 10_000  # of one table; wandb drops those beyond, and does not say so


def track(
    factories: Mapping[str, LoggerFactory],
    folder: Path,
    *,
    name: str,
    run_id: str,
    about: Mapping[str, Any],
    rows: Sequence[Row],
    figures: Mapping[str, float],
    pictures: Mapping[str, Path],
) -> str | None:
    """Show all of it in these loggers; the command that uploads an offline run, if any.

    name: what was measured. run_id: of the W&B run; a second call goes on with it. about: plain
    containers that take the place of a training run's config.
    """
    placed = {key: _placed(factory, folder, name) for key, factory in factories.items()}
    with open_loggers(placed, folder, config=about, run_id=run_id, resumed_at=None) as loggers:
        for start in range(0, len(rows), MOST_ROWS):
            part = f"_{start // MOST_ROWS + 1}" if start else ""
            loggers.show_table(f"results{part}", rows[start : start + MOST_ROWS])
        for picture, path in pictures.items():
            loggers.show_picture(f"charts/{picture}", path)
        loggers.show_summary(figures)
        return loggers.sync_command


def group(folder: Path) -> str:
    """The name that the W&B runs of a folder share: its own, or its sweep's for a numbered job."""
    return next(part for part in reversed(folder.resolve().parts) if not part.isdecimal())


def _placed(factory: LoggerFactory, folder: Path, name: str) -> LoggerFactory:
    if not isinstance(factory, WandbRun):
        return factory
    return replace(factory, group=factory.group or group(folder), name=factory.name or name)
