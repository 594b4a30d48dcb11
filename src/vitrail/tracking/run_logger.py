"""What vitrail asks of a logger beyond Lightning's curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import Logger


class RunLogger(Logger):
    """A Lightning logger that may show summary, pictures and tables, and learns how the run ends.

    Showing is optional, since the run's folder holds the same as files: by default nothing happens.
    """

    @property
    def run_id(self) -> str | None:
        """The id under which a service continues this run, None where there is no service."""
        return None

    @property
    def sync_command(self) -> str | None:
        """The shell command that uploads what was logged offline, None where there is nothing."""
        return None

    def show_summary(self, values: Mapping[str, float | str]) -> None:
        """Single figures that describe the whole run, such as its test accuracy."""

    def show_picture(self, name: str, path: Path) -> None:
        """An image file."""

    def show_table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows of plain values that share their keys."""

    def close(self, exit_code: int) -> None:
        """The run is over; 0 means that it finished."""
