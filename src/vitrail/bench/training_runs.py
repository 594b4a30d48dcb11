"""Training runs on one page: curves, final figures, receipts, and where their configs differ."""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonpath
from pathlib import Path
from statistics import quantiles
from typing import Any

import yaml

from vitrail.bench.measurement import Chart, Point, Row, Value
from vitrail.bench.outcome import command, leave
from vitrail.bench.report import Page, Table, differing
from vitrail.bench.results import finite
from vitrail.bench.values import written
from vitrail.errors import UserError

SPEED, TIME = "train/images_per_second", "train/seconds"
FIRST = ("train/loss", "val/loss", "val/acc", SPEED)  # of the charts
BEST = {"val/acc": max, "val/loss": min}  # over a run, beside what it ended with
RECEIPT = ("requested", "chosen", "variant", "why", "rejected", "times_ms")  # of a layer
MOST_POINTS = 300  # of a curve: a page is read by eye
FEW = 8  # settings that differ and stand beside the figures; more have a table of their own alone


@dataclass(frozen=True)
class Run:
    """A training run's folder. metrics: each metric as points (optimizer step, value)."""

    name: str
    config: Mapping[str, Any]
    metrics: Mapping[str, Sequence[Point]]
    receipt: Mapping[str, Any] | None

    @classmethod
    def read(cls, folder: Path, name: str) -> "Run":
        """A run that was stopped is a run too: what it has not written yet is left out."""
        receipt = folder / "receipt.json"
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        return cls(
            name,
            {key: value for key, value in config.items() if key != "logger"},  # computes nothing
            _metrics(folder / "metrics.csv"),
            json.loads(receipt.read_text(encoding="utf-8")) if receipt.is_file() else None,
        )

    def at_seconds(self, name: str) -> list[Point]:
        """A metric as points (seconds of training, value), where the seconds are known."""
        seconds = {point.x: point.y for point in self.metrics.get(TIME, ())}
        return [
            Point(seconds[point.x], point.y)
            for point in self.metrics.get(name, ())
            if point.x in seconds
        ]


def show(patterns: str | Sequence[str], run_dir: Path, overrides: Sequence[str]) -> None:
    """Collect the training runs in folders like `patterns`, sweeps too, on a page in `run_dir`.

    Raises UserError where there is none.
    """
    patterns = [patterns] if isinstance(patterns, str) else [*patterns]
    folders = find(patterns)
    if not folders:
        raise UserError(
            f"runs={','.join(patterns)} leads to no training run; name folders that train.py "
            "wrote, or one above them"
        )
    above = Path(commonpath([folder.parent for folder in folders]))
    runs = [Run.read(folder, str(folder.relative_to(above))) for folder in folders]
    settings = differing({run.name: run.config for run in runs})
    changed = [str(row["key"]) for row in settings]
    rows = [finite(row) for row in figures(runs, settings)]
    beside = changed if len(changed) <= FEW else []
    measured = [name for name in rows[0] if name not in ("run", "refused", *changed)]
    receipts = [row for run in runs for row in receipt_rows(run)]
    page = Page(
        title=f"{len(runs)} training runs" if len(runs) > 1 else "One training run",
        subtitle=str(above),
        command=command(overrides),
        sentences=[*_apart(changed, len(runs)), *_ends(rows)],
        charts=curves(runs),
        tables=[
            Table("Final figures", rows, ["run", *beside], measured),
            Table("Where the configs differ", _settings(rows, changed), ["run"], changed),
            Table("Receipts", receipts, ["run"], list(receipts[0]) if receipts else []),
            Table("Where the environments differ", _environments(runs), ["key"], _names(runs)),
        ],
        details={"Config of the first run": runs[0].config},
    )
    leave(
        run_dir, page, rows, {"keys": ["run", *changed], "folders": [str(one) for one in folders]}
    )


def find(patterns: Sequence[str]) -> list[Path]:
    """The folders of training runs that the patterns match or that lie below a match, in order."""
    return list(
        dict.fromkeys(
            config.parent.resolve()
            for pattern in patterns
            for match in _matches(Path(pattern).expanduser())
            for config in sorted(match.rglob("config.yaml"))
            if any((config.parent / kept).is_file() for kept in ("receipt.json", "metrics.csv"))
        )
    )


def figures(runs: Sequence[Run], settings: Sequence[Row]) -> Iterator[Row]:
    """One row a run: the settings that differ, how far it came, its last and its best figures."""
    names = dict.fromkeys(name for run in runs for name in run.metrics)
    lasts = [name for name in (*FIRST, *names) if name in names and name not in ("epoch", "lr")]
    for run in runs:
        trained = [points for name, points in run.metrics.items() if name.startswith("train/")]
        steps = max((points[-1].x for points in trained), default=None)
        row: dict[str, Value] = {
            "run": run.name,
            **{str(setting["key"]): setting[run.name] for setting in settings},
            "steps": None if steps is None else int(steps) + 1,
        }
        for name in sorted(dict.fromkeys(lasts), key=lambda name: not name.startswith("test/")):
            values = [point.y for point in run.metrics.get(name, ())]
            if name == SPEED:
                row |= _speed(values)
                continue
            row[name] = values[-1] if values else None
            if name in BEST:
                row[f"best {name}"] = BEST[name](values) if values else None
        row["attention"] = _attention(run.receipt)
        yield {**row, "refused": "" if run.metrics else "it wrote no metrics.csv"}


def receipt_rows(run: Run) -> Iterator[Row]:
    """What computed the run: a row for each kind of layer, and how many there are of it.

    Receipts of earlier versions hold less.
    """
    layers = [] if run.receipt is None else [*run.receipt["layers"].values()]
    kinds = [{name: _words(layer.get(name)) for name in RECEIPT} | _gate(layer) for layer in layers]
    for kind in [kind for number, kind in enumerate(kinds) if kind not in kinds[:number]]:
        yield {
            "run": run.name,
            "layers": kinds.count(kind),
            **kind,
            "precision": run.receipt.get("precision"),
            "compiled": run.receipt.get("compiled"),
            "kernels": _kernels(run.receipt.get("kernels")),
        }


def curves(runs: Sequence[Run]) -> list[Chart]:
    """A chart for each metric that some run has more than one point of: a line a run.

    Accuracies come first, by the time that training had taken.
    """
    names = dict.fromkeys([*FIRST, *(name for run in runs for name in run.metrics)])
    names = [name for name in names if name not in ("epoch", TIME)]
    by_time = [
        Chart(f"{name} by time", f"{name} by time", "training, seconds", name, lines)
        for name in ("val/acc", "train/acc")
        if (lines := _lines({run.name: run.at_seconds(name) for run in runs}))
    ]
    by_step = [
        Chart(name, name, "optimizer step", name, lines)
        for name in names
        if (lines := _lines({run.name: run.metrics.get(name, ()) for run in runs}))
    ]
    return by_time + by_step


def _lines(lines: Mapping[str, Sequence[Point]]) -> dict[str, Sequence[Point]]:
    """Those that have points, thinned out; none if no line would be longer than a point."""
    drawn = {name: _thin(points) for name, points in lines.items() if points}
    return drawn if any(len(points) > 1 for points in drawn.values()) else {}


def _matches(pattern: Path) -> list[Path]:
    if pattern.exists():  # also where a folder's name holds what patterns are made of
        return [pattern]
    return sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))


def _metrics(path: Path) -> dict[str, list[Point]]:
    """The columns of metrics.csv without empty cells; none where there is no file."""
    if not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]  # a run that was killed may have left half a line
    found: dict[str, list[Point]] = {}
    for row in csv.DictReader(io.StringIO(whole)):
        step = float(row.pop("step"))
        for name, value in row.items():
            if value:
                found.setdefault(name, []).append(Point(step, float(value)))
    return found


def _speed(values: Sequence[float]) -> Row:
    """The median and its band over the run, since one reading of a speed is noise."""
    names = (f"{SPEED}_p10", SPEED, f"{SPEED}_p90")
    if len(values) < 2:
        return (
            dict(zip(names, (None, *values, None), strict=True)) if values else dict.fromkeys(names)
        )
    deciles = quantiles(values, n=10, method="inclusive")
    return dict(zip(names, (deciles[0], deciles[4], deciles[8]), strict=True))


def _settings(rows: Sequence[Row], changed: Sequence[str]) -> list[Row]:
    return [{name: row[name] for name in ("run", *changed)} for row in rows] if changed else []


def _apart(changed: Sequence[str], count: int) -> list[str]:
    if count == 1:
        return []
    if not changed:
        return [f"the configs of the {count} runs are equal"]
    named = ", ".join(changed) if len(changed) <= FEW else f"{len(changed)} settings"
    return [f"the configs of the {count} runs differ in {named}"]


def _ends(rows: Sequence[Row]) -> Iterator[str]:
    """The ends of what was tested, else of what was validated."""
    for name in ("test/acc", "val/acc"):
        there = sorted(
            (row for row in rows if row.get(name) is not None), key=lambda row: row[name]
        )
        if there:
            low, high = there[0][name], there[-1][name]
            yield f"{name}: highest {written(high)} in {_those(there, name, high)}" + (
                f", lowest {written(low)} in {_those(there, name, low)}" if low < high else ""
            )
            return


def _those(rows: Sequence[Row], name: str, value: float) -> str:
    """The runs that share a figure."""
    return " and ".join(str(row["run"]) for row in rows if row[name] == value)


def _attention(receipt: Mapping[str, Any] | None) -> str | None:
    if receipt is None:
        return None
    chosen = [layer["chosen"] for layer in receipt["layers"].values()]
    return ", ".join(f"{name} in {chosen.count(name)}" for name in dict.fromkeys(chosen)) or None


def _environments(runs: Sequence[Run]) -> list[Row]:
    there = {run.name: run.receipt["environment"] for run in runs if run.receipt is not None}
    return differing(there) if len(there) == len(runs) else []


def _names(runs: Sequence[Run]) -> list[str]:
    return [run.name for run in runs]


def _gate(layer: Mapping[str, Any]) -> Row:
    """How near its limit the worst tensor came, or why nothing was judged."""
    calls = layer.get("gate")
    if not isinstance(calls, list):
        return {"gate": calls}
    shares = [
        error / call["allowed"][name] for call in calls for name, error in call["errors"].items()
    ]
    return {"gate": f"{max(shares):.0%} of what is allowed" if shares else "nothing to prove"}


def _kernels(seen: Mapping[str, Any] | None) -> str | None:
    return None if seen is None else ", ".join([*seen["forward"], *seen["backward"]])


def _words(value: Any) -> Value:
    return (
        "; ".join(f"{name}: {what}" for name, what in value.items())
        if isinstance(value, Mapping)
        else value
    )


def _thin(points: Sequence[Point]) -> Sequence[Point]:
    """Points at even steps, the first and the last among them."""
    if len(points) <= MOST_POINTS:
        return points
    last = len(points) - 1
    return [points[round(i * last / (MOST_POINTS - 1))] for i in range(MOST_POINTS)]
