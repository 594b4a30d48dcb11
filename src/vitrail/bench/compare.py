"""Two folders of results side by side: two machines, two versions, two of anything."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from vitrail.bench.bands import band, is_end, overlap
from vitrail.bench.measurement import Row, Value
from vitrail.bench.outcome import command, leave
from vitrail.bench.report import Page, Table, differing, machine
from vitrail.bench.values import is_number, written
from vitrail.errors import UserError

HOW = ("rounds", "steps", "images")  # of a measurement, and no figure of what was measured
SAME, LOWER, HIGHER, UNKNOWN = "no difference", "lower in B", "higher in B", "no band"


@dataclass(frozen=True)
class Kept:
    """What a folder's results.json holds. name: what a page calls the folder."""

    name: str
    bench: str
    environment: Mapping[str, Any]
    config: Mapping[str, Any]
    keys: Sequence[str]
    rows: Sequence[Row]

    @classmethod
    def read(cls, folder: str, letter: str) -> "Kept":
        """Raises UserError where the folder holds no finished measurement."""
        path = Path(folder).expanduser() / "results.json"
        if not path.is_file():
            raise UserError(
                f"compare: there is no {path}; name folders of measurements that are finished"
            )
        content = json.loads(path.read_text(encoding="utf-8"))
        parts = ("bench", "environment", "config", "keys", "rows")
        if missing := [part for part in parts if part not in content]:
            raise UserError(f"compare: {path} lacks {missing[0]}; measure it again")
        name = f"{letter} {Path(folder).expanduser().resolve().name}"
        return cls(name, *(content[part] for part in parts))

    def by_key(self, keys: Sequence[str]) -> dict[tuple[Value, ...], Row]:
        """The rows by what they were measured of."""
        return {tuple(row[key] for key in keys): row for row in self.rows}


def compare(folders: Sequence[str], run_dir: Path, overrides: Sequence[str]) -> None:
    """Set the results of two folders side by side, figure by figure, on a page in `run_dir`.

    Rows are matched by the columns that say what was measured. Raises UserError where there are
    not two folders, one has no results, they are of two kinds, or no row has its like.
    """
    if isinstance(folders, str) or len(folders) != 2:
        raise UserError(f"compare={folders} does not name two folders; write compare=A,B")
    a, b = (Kept.read(str(folder), letter) for folder, letter in zip(folders, "AB", strict=True))
    if (a.bench, a.keys) != (b.bench, b.keys):
        raise UserError(
            f"compare: {folders[0]} holds a measurement of {a.bench} and {folders[1]} one of "
            f"{b.bench}; name two of one kind"
        )
    apart = [key for key in a.keys if tells_apart(key, a, b)]
    keys = [key for key in a.keys if key not in apart]
    rows = side_by_side(a, b, keys)
    if not rows:
        raise UserError(
            f"compare: no row of {folders[0]} has its like in {folders[1]}; measure the same "
            f"{', '.join(keys)} in both"
        )
    subjects = [f"{key} is {a.rows[0][key]} in A and {b.rows[0][key]} in B" for key in apart]
    summary = list(summaries(rows))
    names = [a.name, b.name]
    environments = {one.name: one.environment for one in (a, b)}
    configs = {one.name: one.config for one in (a, b)}
    page = Page(
        title=f"bench={a.bench}: {a.name}, {b.name}",
        subtitle=f"A: {machine(a.environment)}. B: {machine(b.environment)}.",
        command=command(overrides),
        sentences=[*subjects, *map(_sentence, summary)],
        charts=(),
        tables=[
            Table("Figure by figure", summary, ["figure"], list(summary[0])),
            Table("Row by row", rows, [*keys, "figure"], list(rows[0])),
            Table("In one of them alone", list(_alone(a, b, keys)), [*keys, "in"], ["why"]),
            Table("Where the environments differ", differing(environments), ["key"], names),
            Table("Where the configs differ", differing(configs), ["key"], names),
        ],
    )
    leave(run_dir, page, rows, {"bench": a.bench, "keys": [*keys, "figure"]} | environments)


def tells_apart(key: str, a: Kept, b: Kept) -> bool:
    """Whether a column is one thing in all of A and another in all of B, such as the device.

    It is then what is compared, and rows cannot be matched by it.
    """
    values = [{row[key] for row in one.rows} for one in (a, b)]
    return len(values[0]) == len(values[1]) == 1 and values[0] != values[1]


def side_by_side(a: Kept, b: Kept, keys: Sequence[str]) -> list[Row]:
    """A row for each figure of each pair of rows: both, their bands, the ratio B / A, a verdict.

    Verdict: whether it is lower or higher in B; `no difference` where the figures are equal or the
    bands overlap; `no band` where one has none, so that the two alone cannot be told from noise.
    """
    others = b.by_key(keys)
    columns = list(a.rows[0])
    return [
        {**dict(zip(keys, key, strict=True)), **_pair(column, a, row, b, others[key])}
        for column in columns
        if column not in (*a.keys, *HOW, "refused") and not is_end(column, columns)
        for key, row in a.by_key(keys).items()
        if key in others and is_number([row[column]]) and is_number([others[key].get(column)])
    ]


def summaries(rows: Sequence[Row]) -> Iterator[Row]:
    """A row for each figure: how many pairs say what, and how far the ratios reach."""
    for figure in dict.fromkeys(row["figure"] for row in rows):
        own = [row for row in rows if row["figure"] == figure]
        verdicts = [row["verdict"] for row in own]
        ratios = [row["B / A"] for row in own if row["B / A"] is not None]
        yield {
            "figure": figure,
            "rows": len(own),
            **{verdict: verdicts.count(verdict) for verdict in (LOWER, HIGHER, SAME, UNKNOWN)},
            "median B / A": median(ratios) if ratios else None,
            "smallest B / A": min(ratios, default=None),
            "largest B / A": max(ratios, default=None),
        }


def _pair(column: str, a: Kept, one: Row, b: Kept, other: Row) -> Row:
    bands = band(one, column), band(other, column)
    return {
        "figure": column,
        **_beside(a.name, one[column], bands[0]),
        **_beside(b.name, other[column], bands[1]),
        "B / A": other[column] / one[column] if one[column] else None,
        "verdict": _verdict(one[column], other[column], *bands),
    }


def _beside(name: str, value: Value, ends: tuple[float, float] | None) -> Row:
    low, high = ends or (None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _verdict(
    one: float,
    other: float,
    band_of_one: tuple[float, float] | None,
    band_of_other: tuple[float, float] | None,
) -> str:
    if one == other:
        return SAME
    if band_of_one is None or band_of_other is None:
        return UNKNOWN
    if overlap(band_of_one, band_of_other):
        return SAME
    return LOWER if other < one else HIGHER


def _sentence(summary: Row) -> str:
    """What all pairs of a figure say, without a winner where there is none."""
    counts = ", ".join(
        f"{verdict} in {summary[verdict]}"
        for verdict in (LOWER, HIGHER, SAME, UNKNOWN)
        if summary[verdict]
    )
    reach = ""
    if summary["median B / A"] is not None:
        middle, low, high = (
            written(summary[f"{which} B / A"]) for which in ("median", "smallest", "largest")
        )
        reach = f"; B / A is {middle} in the median, from {low} to {high}"
    pairs = f"{summary['rows']} pair{'s' * (summary['rows'] > 1)} of rows"
    return f"{summary['figure']}, of {pairs}: {counts}{reach}"


def _alone(a: Kept, b: Kept, keys: Sequence[str]) -> Iterator[Row]:
    """The rows with figures that the other folder does not have, or only with a reason."""
    for one, other in ((a, b), (b, a)):
        others = other.by_key(keys)
        for key, row in one.by_key(keys).items():
            why = others[key]["refused"] if key in others else "not measured there"
            if why and not row["refused"]:
                yield {**dict(zip(keys, key, strict=True)), "in": one.name, "why": why}
