"""Measurements as a table on the screen and as files: one row a measurement, units in the names."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from vitrail.tracking.atomic import write_json, write_text
from vitrail.tracking.environment import describe


def show(rows: Sequence[Mapping[str, Any]], *, title: str) -> None:
    """Print what differs between the rows, and below them the reasons of the refused ones."""
    table = Table(title=title, title_justify="left")
    for heading in ("backend", "forward ms", "forward+backward ms", "10-90 %", "ratio", "auto"):
        table.add_column(heading, justify="left" if heading == "backend" else "right")
    best = rows[0]["forward_backward_ms"]
    for row in rows:
        if row["refused"]:
            continue
        whole = row["forward_backward_ms"]
        band = f"{row['forward_backward_ms_p10']:.2f}-{row['forward_backward_ms_p90']:.2f}"
        times = (f"{row['forward_ms']:.2f}", f"{whole:.2f}", band, f"{whole / best:.2f}x")
        table.add_row(row["backend"], *times, "chosen" * row["auto"])
    console = Console()
    console.print(table)
    for row in rows:
        if row["refused"]:
            console.print(f"{row['backend']} {row['refused']}", markup=False)


def write(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """results.csv for spreadsheets, results.json with the environment; both whole or not at all."""
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_text(folder / "results.csv", text.getvalue())
    write_json(folder / "results.json", {"environment": describe(), "rows": list(rows)})
    print(f"results: {folder / 'results.csv'} and results.json")
