"""times.csv: how far a training run was after how many seconds, however often it was resumed."""

import csv
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytorch_lightning.utilities import rank_zero_only

from vitrail.tracking.atomic import naming
from vitrail.tracking.run_logger import RunLogger

FILE = "times.csv"
COLUMNS = ("step", "seconds", "val_acc")


@dataclass(frozen=True)
class Moment:
    """seconds: since the first batch could be had. val_acc: of a validation that has just ended."""

    step: int
    seconds: float
    val_acc: float | None


@dataclass(frozen=True)
class WallClock:
    """A logger's recipe: a row where an epoch or a validation ends."""

    def open(self, folder: Path, *, run_id: str | None, resumed_at: int | None) -> RunLogger:
        return Times(folder, resumed_at=resumed_at)


class Times(RunLogger):
    """Seconds go on where those of the resumed checkpoint end: what was lost with a kill is not
    counted, and done anew.

    folder: the run's. resumed_at: optimizer steps behind the checkpoint, None for a new run.
    """

    name = "times"
    version = None

    def __init__(
        self,
        folder: Path,
        *,
        resumed_at: int | None,
        read: Callable[[], float] = time.monotonic,
    ):
        super().__init__()
        self.path = folder / FILE
        kept = [] if resumed_at is None else moments(folder)
        kept = [moment for moment in kept if moment.step < resumed_at]
        self._before = kept[-1].seconds if kept else 0.0
        self._read, self._start = read, read()
        with naming(self.path), self.path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(
                [COLUMNS, *((m.step, m.seconds, _text(m.val_acc)) for m in kept)]
            )

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Note the moment when there are figures of an epoch or of a validation."""
        if not metrics.keys() & {"val/acc", "train/epoch_loss"}:
            return
        seconds = self._before + self._read() - self._start
        with naming(self.path), self.path.open("a", encoding="utf-8", newline="") as file:
            row = (step, seconds, _text(metrics.get("val/acc")))
            csv.writer(file, lineterminator="\n").writerow(row)

    def log_hyperparams(self, params: Mapping[str, object]) -> None:
        """Nothing: the resolved config lies beside the file."""


def moments(folder: Path) -> list[Moment]:
    """The rows of a run's times.csv, none where there is none."""
    path = folder / FILE
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]  # a run that was killed may have left half a line
    return [
        Moment(
            int(row["step"]),
            float(row["seconds"]),
            float(row["val_acc"]) if row["val_acc"] else None,
        )
        for row in csv.DictReader(whole.splitlines())
    ]


def _text(value: float | None) -> str:
    return "" if value is None else str(float(value))
