"""results.jsonl: the rows of a measurement, kept cell by cell.

The first line says what is measured, each further one holds a finished cell, so that a measurement
that was stopped goes on there.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

from vitrail.bench.report import Row
from vitrail.errors import UserError
from vitrail.run.console import shown
from vitrail.tracking.atomic import naming

RESULTS = "results.jsonl"
LOGGER = "logger"  # the setting that changes no figure, so it makes no other measurement


@dataclass(frozen=True)
class Subject:
    """What is measured, and on what; rows of two subjects do not belong into one folder."""

    bench: str
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    command: str
    started: str
    keys: Sequence[str]


class Results:
    """The cells of a subject in a folder; those that were finished before a kill are there again.

    A kill can cut short only the last line: one without its end is dropped. Raises UserError where
    the folder holds another subject, and OSError where it cannot be written.
    """

    def __init__(self, folder: Path, subject: Subject):
        self.path = folder / RESULTS
        kept = check_subject(folder, subject)
        self.subject = kept or subject
        self.cells: dict[str, list[Row]] = {
            line["cell"]: line["rows"] for line in lines_of(self.path)[1:]
        }
        with naming(self.path), self.path.open("ab") as file:
            file.truncate(self.path.read_bytes().rfind(b"\n") + 1)
        if kept is None:
            self._append(asdict(subject))

    @property
    def id(self) -> str:
        """What tells this measurement from others, however often it is started again."""
        return sha256(json.dumps(asdict(self.subject)).encode()).hexdigest()[:12]

    @property
    def rows(self) -> list[Row]:
        return [row for rows in self.cells.values() for row in rows]

    def add(self, cell: str, rows: Sequence[Row]) -> None:
        """Keep the rows of a finished cell on disk."""
        self.cells[cell] = [finite(row) for row in rows]
        self._append({"cell": cell, "rows": self.cells[cell]})

    def _append(self, content: Mapping[str, Any]) -> None:
        with naming(self.path), self.path.open("ab") as file:
            file.write(json.dumps(content, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Where two nested mappings differ, by dotted key: the leaf of each, None where it has none."""
    first, second = flat(one), flat(other)
    return {
        key: (first.get(key), second.get(key))
        for key in dict.fromkeys([*first, *second])
        if first.get(key) != second.get(key)
    }


def flat(tree: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Leaves of nested mappings by dotted key; a list is a leaf."""
    leaves = {}
    for name, value in tree.items():
        inner = isinstance(value, Mapping) and value
        leaves |= flat(value, f"{place}{name}.") if inner else {place + name: value}
    return leaves


def finite(row: Row) -> Row:
    """A row as it is kept: None for a figure that is not finite, and why, if no reason is there."""
    odd = [name for name, value in row.items() if isinstance(value, float) and not isfinite(value)]
    if not odd:
        return dict(row)
    reason = row["refused"] or "; ".join(f"{name} is {row[name]}" for name in odd)
    return {**row, **dict.fromkeys(odd), "refused": reason}


def check_subject(folder: Path, asked: Subject) -> Subject | None:
    """What a folder was measured as, None where it holds nothing yet.

    Raises UserError with the first thing that makes another subject of it than what is asked for.
    """
    lines = lines_of(folder / RESULTS)
    if not lines:
        return None
    kept, place = Subject(**lines[0]), shown(folder)
    asked = Subject(**json.loads(json.dumps(asdict(asked))))  # as it would be read again
    subjects = (
        {**one.settings, LOGGER: None, "measurement": one.bench, "environment": one.environment}
        for one in (kept, asked)
    )
    for key, (before, now) in differences(*subjects).items():
        raise UserError(
            f"{place} was measured with {key}={before}, got {now}; use a new folder, and set both "
            "side by side with compare="
        )
    return kept


def read(folder: Path) -> tuple[Subject, list[Row]]:
    """The subject and all rows of a folder with a measurement."""
    first, *cells = lines_of(folder / RESULTS)
    return Subject(**first), [row for cell in cells for row in cell["rows"]]


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file, none where it is not there."""
    data = path.read_bytes() if path.exists() else b""
    lines = []
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            lines.append(json.loads(line))
        except ValueError:
            way = "delete it, and its cell is measured again" if lines else "use a new folder"
            raise UserError(f"line {number} of {path} is damaged; {way}") from None
    return lines
