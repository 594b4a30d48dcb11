"""metrics.csv: the curves of a run as a table that any program reads."""

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from pytorch_lightning.utilities import rank_zero_only

from vitrail.errors import UserError
from vitrail.tracking.atomic import naming, write_text
from vitrail.tracking.run_logger import RunLogger


class MetricsCSV(RunLogger):
    """One row a call, one column a metric; `step` counts optimizer steps from 0.

    Lightning's CSVLogger deletes the file of the run that it continues; this one drops only the
    rows of steps that will be taken again. Nothing is touched before the first row.

    Args:
        folder: the run's folder.
        resumed_at: optimizer steps behind the checkpoint that a run continues, None for a new run.
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
        """Add one row; raises OSError when the file cannot be written."""
        row = {"step": step, **metrics}
        if self._columns is None:
            rows = self._rows_to_continue()
            self._columns = list(rows[0]) if rows else []
            self._write([*rows, row])
        elif row.keys() <= set(self._columns):
            with naming(self.path), self.path.open("a", encoding="utf-8", newline="") as file:
                file.write(_lines(self._columns, [row]))
        else:
            self._write([*_read(self.path), row])

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Nothing: the resolved config lies beside the file."""

    def _rows_to_continue(self) -> list[dict[str, str]]:
        if self._resumed_at is None or not self.path.exists():
            return []
        return [row for row in _read(self.path) if int(row["step"]) < self._resumed_at]

    def _write(self, rows: list[dict[str, Any]]) -> None:
        self._columns = list(dict.fromkeys([*self._columns, *rows[-1]]))
        header = dict(zip(self._columns, self._columns, strict=True))
        write_text(self.path, _lines(self._columns, [header, *rows]))


def read_metrics(path: Path) -> pd.DataFrame:
    """The file as numbers, NaN for empty cells; an empty table where there is no file yet.

    Raises UserError that names the file and the first cell that holds something else.
    """
    if not path.is_file():
        return pd.DataFrame({"step": []})
    cells = pd.DataFrame(_read(path)).replace("", None)
    numbers = cells.apply(pd.to_numeric, errors="coerce")
    for column in cells:
        there = cells[column].notna() & (cells[column] != "nan")  # a loss may diverge
        if (wrong := cells[column][there & numbers[column].isna()]).size:
            line = wrong.index[0] + 2
            raise UserError(
                f"{path}: {column} in line {line} must be a number, got {wrong.iloc[0]}; "
                "mend the line, or leave the run out"
            )
    return numbers


def _lines(columns: list[str], rows: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, columns, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _read(path: Path) -> list[dict[str, str]]:
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]  # a run that was killed may have left half a line
    return list(csv.DictReader(io.StringIO(whole)))
