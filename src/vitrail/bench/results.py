"""results.jsonl: what is measured, then a line a finished cell, so that a stopped one goes on."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

import pandas as pd

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
        self.path, lines = folder / RESULTS, lines_of(folder / RESULTS)
        self.subject = Subject(**lines[0]) if lines else subject
        if lines:
            _check_same(shown(folder), self.subject, subject)
        self.cells: dict[str, list[Row]] = {line["cell"]: line["rows"] for line in lines[1:]}
        with naming(self.path), self.path.open("ab") as file:
            file.truncate(self.path.read_bytes().rfind(b"\n") + 1)
        if not lines:
            self._append(asdict(subject))

    @property
    def id(self) -> str:
        """What tells this measurement from others, however often it is started again."""
        return sha256(json.dumps(asdict(self.subject)).encode()).hexdigest()[:12]

    @property
    def rows(self) -> list[Row]:
        return [row for rows in self.cells.values() for row in rows]

    def add(self, cell: str, rows: Sequence[Row]) -> None:
        """Keep the rows of a finished cell on disk; a figure that is not finite is a reason."""
        self.cells[cell] = [_finite(row) for row in rows]
        self._append({"cell": cell, "rows": self.cells[cell]})

    def _append(self, content: Mapping[str, Any]) -> None:
        with naming(self.path), self.path.open("ab") as file:
            file.write(json.dumps(content, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def differing(trees: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """One row for each dotted key whose leaves differ between the named trees: a column a tree."""
    leaves = {name: pd.json_normalize(dict(tree)).map(str).iloc[0] for name, tree in trees.items()}
    frame = pd.DataFrame({name: series.to_dict() for name, series in leaves.items()})
    return frame[frame.nunique(axis=1, dropna=False) > 1].rename_axis("key").reset_index()


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


def _check_same(place: str, kept: Subject, asked: Subject) -> None:
    asked = Subject(**json.loads(json.dumps(asdict(asked))))  # as it would be read again
    trees = {
        name: {
            **one.settings,
            LOGGER: None,
            "measurement": one.bench,
            "environment": one.environment,
        }
        for name, one in (("kept", kept), ("asked", asked))
    }
    for key, before, now in differing(trees).fillna("None").itertuples(index=False):
        raise UserError(
            f"{place} was measured with {key}={before}, got {now}; use a new folder, and set both "
            "side by side with compare="
        )


def _finite(row: Row) -> Row:
    odd = [name for name, value in row.items() if isinstance(value, float) and not isfinite(value)]
    reason = row["refused"] or "; ".join(f"{name} is {row[name]}" for name in odd)
    return {**row, **dict.fromkeys(odd), "refused": reason}
