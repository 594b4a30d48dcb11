"""What the rows of `bench=data` say: how vitrail's loader stands to torchvision's pipeline."""

import re
from collections.abc import Sequence

from vitrail.bench.bands import band, overlap
from vitrail.bench.grouping import grouped
from vitrail.bench.measurement import Chart, Findings, Point, Row
from vitrail.bench.values import written

SPEED = "images_per_second"
SERIES = ("dataset", "image_size", "augment")  # what is equal on a chart over the workers
BASELINE = "torchvision"


def findings(rows: Sequence[Row]) -> Findings:
    """A chart over the workers for each dataset and augmentation, sentences, and every figure."""
    rows = sorted((row for row in rows if not row["refused"]), key=lambda row: row["workers"])
    series = grouped(rows, SERIES)
    return Findings(
        [chart(one) for one in series if len({row["workers"] for row in one}) > 1],
        [compared(cell) for one in series for cell in grouped(one, ("workers",))],
        {_figure(row): row[SPEED] for row in rows},
    )


def chart(rows: Sequence[Row]) -> Chart:
    """Images a second over the workers, a line a pipeline."""
    subject = _subject(rows[0])
    lines = {_name(line[0]): line for line in grouped(rows, ("pipeline", "cached"))}
    return Chart(
        name=re.sub(r"\W+", "_", f"{SPEED} {subject}").strip("_"),
        title=f"Loading of {subject}",
        x="workers",
        y="images a second",
        lines={
            name: [Point(row["workers"], row[SPEED], *band(row, SPEED)) for row in line]
            for name, line in lines.items()
        },
    )


def compared(cell: Sequence[Row]) -> str:
    """How many images a second each pipeline gives, and how many times the baseline's those are."""
    base = next((row for row in cell if row["pipeline"] == BASELINE), None)
    ours = sorted((row for row in cell if row is not base), key=lambda row: -row[SPEED])
    parts = [f"{_name(row)} {written(row[SPEED])}{_times(row, base)}" for row in ours]
    parts += [f"{_name(base)} {written(base[SPEED])}"] if base else []
    workers = f"{cell[0]['workers']} worker{'s' * (cell[0]['workers'] != 1)}"
    return f"{_subject(cell[0])}, {workers}, images a second: {', '.join(parts)}."


def _times(row: Row, base: Row | None) -> str:
    if base is None:
        return ""
    if overlap(band(row, SPEED), band(base, SPEED)):
        return f" (equal to {BASELINE}'s within noise)"
    return f" ({written(float(f'{row[SPEED] / base[SPEED]:.3g}'))} times {BASELINE}'s)"


def _name(row: Row) -> str:
    return f"{row['pipeline']} from a cache" if row["cached"] else row["pipeline"]


def _subject(row: Row) -> str:
    return f"{row['dataset']} at {row['image_size']}, {row['augment']}"


def _figure(row: Row) -> str:
    """`images_per_second/Digits/8/own/2_workers/vitrail_cached`."""
    pipeline = row["pipeline"] + "_cached" * row["cached"]
    words = (SPEED, row["dataset"], row["image_size"], row["augment"])
    return "/".join((*words, f"{row['workers']}_workers", pipeline))
