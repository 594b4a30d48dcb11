"""The rows of a measurement as files: kept cell by cell while it runs, then as tables for all."""

import csv
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

from vitrail.bench.measurement import Row
from vitrail.errors import UserError
from vitrail.run.console import shown
from vitrail.tracking.atomic import naming, write_json, write_text

CELLS = "cells.jsonl"
LOGGER = "logger"  # the setting that changes no figure, and so makes no other subject


@dataclass(frozen=True)
class Subject:
    """What is measured and on what; rows of two subjects do not belong into one folder.

    bench: the kind of measurement. settings: the config as plain containers, without where results
    go. environment: as `vitrail.tracking.environment.describe` gives it. command: what was
    typed first, and started: when.
    """

    bench: str
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    command: str
    started: str


class Results:
    """The rows of `subject` in a folder; those of finished cells are there again after a kill.

    cells.jsonl holds the subject in its first line and a finished cell in each further one. Lines
    are appended, so a kill can cut short only the last: what lacks its line end is dropped.
    Raises UserError where the folder holds another subject, and OSError when it cannot be written.
    """

    def __init__(self, folder: Path, subject: Subject):
        self.path = folder / CELLS
        kept = check(folder, subject)
        self.subject = kept or subject
        self._rows = {line["cell"]: line["rows"] for line in _lines(self.path)[1:]}
        with naming(self.path), self.path.open("ab") as file:
            # What a kill cut short must not run into the next line.
            file.truncate(_whole(self.path.read_bytes()))
        if kept is None:
            self._append(asdict(subject))

    @property
    def id(self) -> str:
        """What tells this measurement from others, however often it is started again."""
        return sha256(json.dumps(asdict(self.subject)).encode()).hexdigest()[:12]

    @property
    def rows(self) -> list[Row]:
        """The rows of all finished cells."""
        return [row for rows in self._rows.values() for row in rows]

    def cell(self, key: str) -> list[Row] | None:
        """The rows of a finished cell, None where it is still to be measured."""
        return self._rows.get(key)

    def add(self, key: str, rows: Sequence[Row]) -> list[Row]:
        """Keep the rows of a finished cell on disk; returns them as they are kept.

        A figure that is not finite becomes None with a reason: neither JSON nor a chart has it.
        Raises UserError for rows with other columns than those before.
        """
        columns = list(next(iter([*self.rows, *rows]), {}))
        for row in rows:
            if list(row) != columns:
                strange = sorted({*row} ^ {*columns}) or "their order"
                raise UserError(f"rows of {key} differ from those before in columns: {strange}")
        kept = [finite(row) for row in rows]
        self._append({"cell": key, "rows": kept})
        self._rows[key] = kept
        return kept

    def _append(self, content: Mapping[str, Any]) -> None:
        line = json.dumps(content, ensure_ascii=False) + "\n"
        with naming(self.path), self.path.open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())


def settings_in(folder: Path) -> dict[str, Any] | None:
    """The settings of the measurement that a folder holds, None where it holds none."""
    lines = _lines(folder / CELLS)
    return lines[0]["settings"] if lines else None


def write_tables(folder: Path, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
    """results.csv for spreadsheets, and results.json: `about`, and under `rows` the same rows."""
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_text(folder / "results.csv", text.getvalue())
    write_json(folder / "results.json", {**about, "rows": list(rows)})


def flat(tree: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and leaves of nested mappings; a list is a leaf."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{place}{name}.")
        else:
            yield place + name, value


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Where two nested mappings differ, by dotted key: the leaf of each, None where it has none."""
    first, second = dict(flat(one)), dict(flat(other))
    return {
        key: (first.get(key), second.get(key))
        for key in dict.fromkeys([*first, *second])
        if first.get(key) != second.get(key)
    }


def finite(row: Row) -> Row:
    """A row as it is kept: None for a figure that is not finite, and why, if no reason is there."""
    strange = [
        name for name, value in row.items() if isinstance(value, float) and not isfinite(value)
    ]
    if not strange:
        return dict(row)
    reason = row["refused"] or "; ".join(f"{name} is {row[name]}" for name in strange)
    return {**row, **dict.fromkeys(strange), "refused": reason}


def check(folder: Path, asked: Subject) -> Subject | None:
    """What a folder was measured as, None where it holds nothing yet.

    Raises UserError with the first thing that makes another subject of it than what is asked for.
    """
    lines = _lines(folder / CELLS)
    if not lines:
        return None
    kept, place = Subject(**lines[0]), shown(folder)
    elsewhere = "start a new folder, and set the two side by side with compare="
    if kept.bench != asked.bench:
        raise UserError(
            f"{place} holds a measurement of {kept.bench} and this is one of {asked.bench}; "
            "start it in a folder of its own"
        )
    asked = Subject(**json.loads(json.dumps(asdict(asked))))  # as it would be read again
    settings = ({**one.settings, LOGGER: None} for one in (kept, asked))
    if changed := differences(*settings):
        key, (before, now) = next(iter(changed.items()))
        raise UserError(
            f"{place} was measured with {key}={before} and this asks for {key}={now}; "
            f"leave it as it was, or {elsewhere}"
        )
    if changed := differences(kept.environment, asked.environment):
        key, (before, now) = next(iter(changed.items()))
        raise UserError(
            f"{place} was measured where {key} is {before} and here it is {now}; {elsewhere}"
        )
    return kept


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file, none where it is not there."""
    if not path.exists():
        return []
    data = path.read_bytes()
    lines = []
    for number, line in enumerate(data[: _whole(data)].splitlines(), start=1):
        try:
            lines.append(json.loads(line))
        except ValueError:
            mend = "delete it, and its cell is measured again" if lines else "start a new folder"
            raise UserError(f"line {number} of {path} is damaged; {mend}") from None
    return lines


def _whole(data: bytes) -> int:
    """How many bytes of it are whole lines."""
    return data.rfind(b"\n") + 1
