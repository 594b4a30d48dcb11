"""The loggers of one run, opened together and closed together however the run ends."""

import csv
import io
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only
from pytorch_lightning.utilities.exceptions import SIGTERMException

from vitrail.tracking.atomic import naming, write_text
from vitrail.tracking.metrics_csv import read_rows


class RunLogger(Logger):
    """A Lightning logger that may show summary, pictures and tables, and learns how the run ends.

    Showing is optional, since the run's folder holds the same as files: by default nothing happens.
    run_id: under which a service continues this run. sync_command: the shell command that uploads
    what was logged offline. Both are None where there is no such thing.
    """

    run_id: str | None = None
    sync_command: str | None = None

    def show_summary(self, values: Mapping[str, float | str]) -> None:
        """Single figures that describe the whole run, such as its test accuracy."""

    def show_picture(self, name: str, path: Path) -> None:
        """An image file."""

    def show_table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """One or more rows of plain values (str, int, float, bool, None) that share their keys."""

    def close(self, exit_code: int) -> None:
        """The run is over; 0 means that it finished."""


class LoggerFactory(Protocol):
    """What a YAML file in `configs/logger/` builds: how to log, before it is known where."""

    def open(self, folder: Path, *, run_id: str | None, resumed_at: int | None) -> RunLogger | None:
        """The logger of the run in that folder, or None where it is switched off."""


class MetricsCSV(RunLogger):
    """metrics.csv: one row a call, one column a metric; `step` counts optimizer steps from 0.

    Lightning's CSVLogger deletes the file of a run that goes on; this one, with the first row,
    drops the steps from `resumed_at` on, which are taken again. Raises OSError where the file
    cannot be written, which then stays as it was.
    """

    name = "csv"
    version = None

    def __init__(self, folder: Path, *, resumed_at: int | None):
        super().__init__()
        self.path = folder / "metrics.csv"
        self._resumed_at = resumed_at
        self._columns: list[str] | None = None

    @property
    def save_dir(self) -> str:
        """The run's folder, for callbacks that ask their first logger where to write."""
        return str(self.path.parent)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        row = {"step": step, **metrics}
        if self._columns is not None and row.keys() <= set(self._columns):
            with naming(self.path), self.path.open("a", encoding="utf-8", newline="") as file:
                csv.DictWriter(file, self._columns, lineterminator="\n").writerow(row)
            return
        rows = []
        if self._columns is not None:
            rows = read_rows(self.path)
        elif self._resumed_at is not None and self.path.exists():
            rows = [old for old in read_rows(self.path) if float(old["step"]) < self._resumed_at]
        self._columns = list(dict.fromkeys([*(rows[0] if rows else ()), *row]))
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows([*rows, row])
        write_text(self.path, text.getvalue())

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Nothing: the resolved config lies beside the file."""


class Loggers(list[RunLogger]):
    """The Trainer takes it as it is; what is shown goes to every logger.

    run_id: of the W&B run, for checkpoints; a part of the run that was not logged there keeps it.
    """

    def __init__(self, loggers: Iterable[RunLogger], *, run_id: str | None):
        super().__init__(loggers)
        self._earlier_id = run_id

    @property
    def run_id(self) -> str | None:
        return next((logger.run_id for logger in self if logger.run_id), self._earlier_id)

    @property
    def sync_command(self) -> str | None:
        return next((logger.sync_command for logger in self if logger.sync_command), None)

    def show_summary(self, values: Mapping[str, float | str]) -> None:
        for logger in self:
            logger.show_summary(values)

    def show_picture(self, name: str, path: Path) -> None:
        for logger in self:
            logger.show_picture(name, path)

    def show_table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        for logger in self:
            logger.show_table(name, rows)


@contextmanager
def open_loggers(
    factories: Mapping[str, LoggerFactory],
    folder: Path,
    *,
    config: Mapping[str, Any],
    run_id: str | None,
    resumed_at: int | None,
) -> Iterator[Loggers]:
    """metrics.csv and what the factories add, closed as finished or failed when the block is left.

    Only the first process opens any; in the others metrics.csv's logger stands alone and idle.
    Raises UserError where a logger cannot work here, before anything is logged.

    Args:
        factories: by name, as Hydra instantiates the config group `logger`.
        folder: the run's.
        config: resolved, as plain nested containers; shown once.
        run_id: `Loggers.run_id` of the run that is resumed, else None.
        resumed_at: the resumed checkpoint's `global_step`, else None.
    """
    loggers = Loggers([MetricsCSV(folder, resumed_at=resumed_at)], run_id=run_id)
    exit_code = 1
    try:
        if rank_zero_only.rank == 0:
            for factory in factories.values():
                logger = factory.open(folder, run_id=run_id, resumed_at=resumed_at)
                loggers += [] if logger is None else [logger]
        for logger in loggers:
            logger.log_hyperparams(dict(config))
        yield loggers
        exit_code = 0
    except KeyboardInterrupt:
        exit_code = 128 + signal.SIGINT
        raise
    except SIGTERMException:
        exit_code = 128 + signal.SIGTERM
        raise
    except SystemExit as end:
        exit_code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    finally:
        for logger in loggers:
            logger.close(exit_code)
