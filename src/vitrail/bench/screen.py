"""What a person sees of a measurement while it goes on: a table a cell, how far it is, how long."""

import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from vitrail.bench.measurement import Cell, Row
from vitrail.bench.values import has_figures, heading, is_number, written, written_band

WIDTH = 140  # columns of a line in a file, which has no edge


class Screen:
    """Tables of the columns that a measurement names, and a bar between them.

    keys, columns: the measurement's. total: its cells. Nothing is drawn while a cell is measured:
    a bar that moved by itself would take its time from what is timed, and training prints too.
    """

    def __init__(
        self,
        keys: Sequence[str],
        columns: Sequence[str],
        total: int,
        *,
        console: Console | None = None,
        read: Callable[[], float] = time.monotonic,
    ):
        self.keys, self.columns, self.total = keys, columns, total
        self.console = console or Console(width=None if sys.stdout.isatty() else WIDTH)
        self._read = read
        self._start = read()
        self._kept, self._measured = 0, 0

    def begin(self, cell: Cell) -> None:
        """How far it is, and what is measured now."""
        done = self._kept + self._measured
        line = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=self.total, completed=done, width=24)
        line.add_row(bar, Text(f"{done} of {self.total}{self._left()}; now: {cell.title}"))
        self.console.print(line)

    def kept(self, cell: Cell) -> None:
        """A cell that was measured before."""
        self._kept += 1
        self._say(f"kept: {cell.title}")

    def measured(self, cell: Cell, rows: Sequence[Row]) -> None:
        """The rows of a cell, and below them the reasons of those that are none."""
        self._measured += 1
        table = table_of(rows, self.keys, self.columns, title=cell.title)
        if table.row_count:
            self.console.print(table)
        words = [key for key in self.keys if key in self.columns] or self.keys
        for row in rows:
            if row["refused"]:
                name = " ".join(written(row[key]) for key in words)
                self._say(f"{name}: {row['refused']}")

    def _say(self, line: str) -> None:
        self.console.print(Text(line), soft_wrap=True)  # what is in a line may look like markup

    def _left(self) -> str:
        """Time that has passed and that is left, if the cells to come are like those before."""
        if not self._measured:
            return ""
        passed = self._read() - self._start
        left = passed / self._measured * (self.total - self._kept - self._measured)
        return f", {_clock(passed)} passed, about {_clock(left)} left"


def table_of(
    rows: Sequence[Row], keys: Sequence[str], columns: Sequence[str], *, title: str
) -> Table:
    """The rows that hold figures, with bands beside them and numbers to the right."""
    table = Table(title=Text(title), title_justify="left")
    for column in columns:
        number = is_number(row[column] for row in rows)
        table.add_column(Text(heading(column)), justify="right" if number else "left")
    for row in rows:
        if has_figures(row, keys) or not row["refused"]:
            table.add_row(*(Text(_cell(row, column)) for column in columns))
    return table


def _cell(row: Row, column: str) -> str:
    ends = written_band(row, column)
    return f"{written(row[column])} ({ends})" if ends else written(row[column])


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
