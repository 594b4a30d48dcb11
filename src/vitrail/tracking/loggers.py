"""The loggers of one run, opened together and closed together however the run ends."""

import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytorch_lightning.utilities import rank_zero_only
from pytorch_lightning.utilities.exceptions import SIGTERMException

from vitrail.tracking.metrics_csv import MetricsCSV
from vitrail.tracking.run_logger import LoggerFactory, RunLogger


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
