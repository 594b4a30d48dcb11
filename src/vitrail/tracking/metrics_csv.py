"""metrics.csv read again, as numbers or as it is written."""

import csv
import io
from pathlib import Path

import pandas as pd

from vitrail.errors import UserError


def read_metrics(path: Path) -> pd.DataFrame:
    """The file as numbers, NaN for empty cells; an empty table where there is no file yet.

    Raises UserError that names the file and the first cell that holds something else.
    """
    rows = read_rows(path) if path.is_file() else []
    table = pd.DataFrame(rows, columns=None if rows else ["step"])
    return table.replace("", "nan").astype(float)


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows as they are written, checked as `read_metrics` says."""
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
