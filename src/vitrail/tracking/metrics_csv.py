"""metrics.csv: the curves of a run as a table that any program reads."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from pytorch_lightning.utilities import rank_zero_only

from vitrail.errors import UserError
from vitrail.tracking.atomic import naming, write_text
from vitrail.tracking.run_logger import RunLogger


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
            rows = _read(self.path)
        elif self._resumed_at is not None and self.path.exists():
            rows = [old for old in _read(self.path) if float(old["step"]) < self._resumed_at]
        self._columns = list(dict.fromkeys([*(rows[0] if rows else ()), *row]))
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows([*rows, row])
        write_text(self.path, text.getvalue())

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Nothing: the resolved config lies beside the file."""


def read_metrics(path: Path) -> pd.DataFrame:
    """The file as numbers, NaN for empty cells; an empty table where there is no file yet.

    Raises UserError that names the file and the first cell that holds something else.
    """
    rows = _read(path) if path.is_file() else []
    table = pd.DataFrame(rows, columns=None if rows else ["step"])
    return table.replace("", "nan").astype(float)


def _read(path: Path) -> list[dict[str, str]]:
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]  # a run that was killed may have left half a line
    rows = list(csv.DictReader(io.StringIO(whole)))
    for line, row in enumerate(rows, start=2):
        for column, cell in row.items():
            try:
                float(cell or "nan")
            except (TypeError, ValueError):
                raise UserError(
                    f"{path}: {column} in line {line} must be a number, got {cell}; "
                    "correct the line, or leave the run out"
                ) from None
    return rows
