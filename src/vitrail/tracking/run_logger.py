"""What vitrail asks of a logger beyond Lightning's curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pytorch_lightning.loggers import Logger


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
