"""What a measurement is made of: cells, measured one by one, the rows that they give, charts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from omegaconf import DictConfig

Value = str | int | float | bool | None
# One measurement: units in the names, and the reason in "refused". The ends of a figure's band
# stand beside it: x_p10 and x_p90 of times, x_low and x_high of a 95 % interval.
Row = Mapping[str, Value]


@dataclass(frozen=True)
class Context:
    """What a measurement is run in.

    config: the whole config of the command. folder: where its results lie.
    """

    config: DictConfig
    folder: Path


@dataclass(frozen=True)
class Cell:
    """What is measured at one time, its members in turn.

    key: tells it from the others in its folder, equal in every process. title: for people.
    """

    key: str
    title: str


@dataclass(frozen=True)
class Point:
    """One point of a line; low and high are the ends of its band, None for none."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Chart:
    """Lines by name. note: sentences of what it shows, such as fitted exponents."""

    name: str
    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[Point]]
    log: bool = False
    note: str = ""


@dataclass(frozen=True)
class Findings:
    """What all rows together say: charts, plain sentences, and figures named for comparison."""

    charts: Sequence[Chart] = ()
    sentences: Sequence[str] = ()
    figures: Mapping[str, float] = field(default_factory=dict)


class Measurement(Protocol):
    """A kind of measurement, built from its config with `context` as one more argument.

    keys: the columns that say what was measured and tell a row from all others, such as backend
    and tokens. columns: those that the terminal shows.
    """

    keys: Sequence[str]
    columns: Sequence[str]

    def cells(self) -> Sequence[Cell]:
        """Everything that will be measured, in order."""

    def measure(self, cell: Cell) -> list[Row]:
        """The rows of one cell, all with the same keys; what cannot be measured has a reason."""

    def findings(self, rows: Sequence[Row]) -> Findings:
        """What the rows of all cells say."""
