"""`compare=`: folders of measurements, or of trainings, side by side."""

import json
from collections.abc import Mapping, Sequence
from os.path import commonpath
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from vitrail.bench.harness import command, console_of, machine
from vitrail.bench.report import Chart, Report, Row, print_table, publish, table_of
from vitrail.bench.results import RESULTS, differing, read
from vitrail.bench.statistics import BAND, ENDS, unpaired_ratio, verdict
from vitrail.errors import UserError
from vitrail.tracking.metrics_csv import read_metrics

COUNTS = ("rounds", "steps", "images")  # say how something was measured, and are no result
TIMES = ("time_ms", "step_ms", "epoch_ms")  # figures whose rounds are there
RECEIPT = ("requested", "chosen", "variant", "why", "pattern", "position", "gate")  # of a layer
SPEED, SECONDS = "train/images_per_second", "train/seconds"
MOST_POINTS = 300  # of a curve: a page is read by eye
FEW = 8  # settings that differ and stand beside the figures; more have a table of their own alone


def compare(patterns: str | Sequence[str], run_dir: Path, overrides: Sequence[str]) -> None:
    """Leave a page on the folders that the patterns match, in `run_dir`.

    Args:
        patterns: folders or globs: of measurements of one kind, of which the first is compared with
            the others, or of trainings, also of those below a folder.
        run_dir: where the page goes.
        overrides: as typed.

    Raises:
        UserError: there is nothing to compare.
    """
    patterns = [patterns] if isinstance(patterns, str) else [*patterns]
    found = [match for pattern in patterns for match in _matches(Path(str(pattern)).expanduser())]
    measured = [folder for folder in found if (folder / RESULTS).is_file()]
    trained = _trainings([folder for folder in found if folder not in measured])
    if trained:
        if measured:
            print(f"left out, as a measurement among trainings: {', '.join(map(str, measured))}")
        report = trainings(trained, command(overrides))
    elif len(measured) > 1:
        report = measurements(measured, command(overrides))
    else:
        raise UserError(
            f"compare={','.join(map(str, patterns))} finds {len(measured)} measurements and no "
            "training; name two folders of bench.py, or one or more of train.py"
        )
    title, main = next(iter(report.tables.items()))
    most = [name for name in main if not name.startswith(("train/", "val/", "lr"))]
    print_table(console_of(), title, main[most])
    publish(run_dir, report)


def measurements(folders: Sequence[Path], line: str) -> Report:
    """Every figure of each folder beside that of the first; rows are matched by their keys.

    Times are compared by their rounds, which were not taken in turn: the interval is that of the
    rounds' spread alone.
    """
    subjects, parts = zip(*map(read, folders), strict=True)
    kinds = {subject.bench: folder for subject, folder in zip(subjects, folders, strict=True)}
    if len(kinds) > 1:
        held = " and ".join(f"bench={kind} in {folder}" for kind, folder in kinds.items())
        raise UserError(f"compare takes measurements of one kind, got {held}")
    names, keys = _names(folders), subjects[0].keys
    # A key that is one thing in all rows of each folder, and another in another, such as the
    # device, is what is compared.
    values = {key: [{row.get(key) for row in rows} for rows in parts] for key in keys}
    shared = [k for k, v in values.items() if len(set().union(*v)) == 1 or max(map(len, v)) > 1]
    first, *others = (_figures(rows, shared, skip=(*keys, *COUNTS)) for rows in parts)
    rows = [
        _compared(row, name, names[0])
        for name, other in zip(names[1:], others, strict=True)
        for row in first.merge(other, on=[*shared, "figure"], suffixes=("_first", "")).to_dict(
            "records"
        )
    ]
    if not rows:
        raise UserError(
            f"compare finds no row of {folders[0]} in another folder; measure the same "
            f"{', '.join(shared)} in all"
        )
    frame, by_name = table_of(rows), dict(zip(names, subjects, strict=True))
    tables = {
        f"Ratios to {names[0]}": frame,
        "Where the environments differ": differing({n: s.environment for n, s in by_name.items()}),
        "Where the configs differ": differing({n: s.settings for n, s in by_name.items()}),
    }
    machines = ". ".join(f"{name}: {machine(s.environment)}" for name, s in by_name.items())
    return Report(f"bench={subjects[0].bench}: {', '.join(names)}", machines, line, frame, tables)


def trainings(folders: Sequence[Path], line: str) -> Report:
    """Final figures, curves, receipts, and where configs differ, also of a run that was stopped."""
    names = _names(folders)
    configs, receipts, parts = {}, {}, []
    for name, folder in zip(names, folders, strict=True):
        configs[name] = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        configs[name].pop("logger", None)  # computes nothing
        if (path := folder / "receipt.json").is_file():
            receipts[name] = json.loads(path.read_text(encoding="utf-8"))
        parts.append(read_metrics(folder / "metrics.csv").assign(run=name))
    metrics, settings = pd.concat(parts), differing(configs)
    figures = _final(metrics, names)
    if 0 < len(settings) <= FEW:
        beside = settings.set_index("key").T.rename_axis("run").reset_index()
        figures = beside.merge(figures, "right")
    tables = {
        "Final figures": figures,
        "Where the configs differ": settings,
        "Receipts": _layers(receipts),
        "Where the environments differ": differing(
            {name: receipt["environment"] for name, receipt in receipts.items()}
        ),
    }
    title = f"{len(folders)} training runs" if len(folders) > 1 else "One training run"
    above = commonpath([folder.parent for folder in folders])
    details = {f"Config of {names[0]}": configs[names[0]]}
    return Report(title, above, line, figures, tables, curves(metrics), details)


def curves(metrics: pd.DataFrame) -> list[Chart]:
    """A chart for each metric of which some run has more than one point: a line a run.

    Accuracies come first, over the seconds of training.
    """
    charts = []
    if SECONDS in metrics:
        by_step = metrics.groupby(["run", "step"], sort=False).max().reset_index()
        by_step = by_step.dropna(subset=[SECONDS])
        charts = [
            Chart(f"{name} by time", by_step, SECONDS, name, "run")
            for name in ("val/acc", "train/acc")
            if name in by_step and by_step[name].notna().sum() > 1
        ]
    for name in metrics.columns.drop(["step", "run", "epoch", SECONDS], errors="ignore"):
        runs = [run for _, run in metrics.dropna(subset=[name]).groupby("run", sort=False)]
        if max(map(len, runs), default=0) > 1:
            thin = pd.concat(run.iloc[:: -(-len(run) // MOST_POINTS)] for run in runs)
            charts.append(Chart(name, thin, "step", name, "run"))
    return charts


def _final(metrics: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """What each run ended with, its best accuracy on val, and the median of its speed."""
    runs = metrics.groupby("run", sort=False)
    last = runs.last().reindex(names)  # of each column the last that is there
    trained = metrics[metrics.filter(like="train/").notna().any(axis=1)]
    last["steps"] = trained.groupby("run")["step"].max() + 1
    for name, column, how in (("best val/acc", "val/acc", "max"), (SPEED, SPEED, "median")):
        if column in metrics:
            last[name] = runs[column].agg(how)
    first = sorted(last, key=lambda name: not name.startswith(("test/", "best ", SPEED, SECONDS)))
    return last[first].drop(columns=["step", "epoch"], errors="ignore").reset_index()


def _layers(receipts: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """A row for each kind of layer, with how many there are; older receipts hold less."""
    rows = []
    for run, receipt in receipts.items():
        seen = receipt.get("kernels") or {"forward": (), "backward": ()}
        whole = {"run": run, "kernels": ", ".join([*seen["forward"], *seen["backward"]])}
        whole |= {key: str(receipt.get(key)) for key in ("precision", "compiled")}
        layers = receipt["layers"].values()
        rows += [whole | {key: str(layer.get(key)) for key in RECEIPT} for layer in layers]
    return pd.DataFrame(rows).value_counts(sort=False).rename("layers").reset_index()


def _figures(rows: Sequence[Row], keys: Sequence[str], skip: Sequence[str]) -> pd.DataFrame:
    """A row a figure: keys, rounds_ms, the figure's name and its value."""
    frame = pd.DataFrame(rows).convert_dtypes()
    numbers = frame.select_dtypes("number").columns.difference(skip, sort=False)
    figures = [name for name in numbers if not name.endswith((*BAND, *ENDS))]
    frame = frame.reindex(columns=[*keys, "rounds_ms", *figures])
    return frame.melt([*keys, "rounds_ms"], var_name="figure").dropna(subset="value")


def _compared(row: dict[str, Any], folder: str, first: str) -> Row:
    """Both values of a figure, their ratio, and for times its interval and the verdict."""
    now, before = row.pop("rounds_ms"), row.pop("rounds_ms_first")
    value, base = row.pop("value"), row.pop("value_first")
    row |= {"folder": folder, first: base, "value": value, "ratio": value / base if base else None}
    if row["figure"] in TIMES and min(len(now), len(before)) > 1:
        ratio = unpaired_ratio(now, before)
        row |= ratio.columns("ratio") | {"verdict": verdict(ratio, "faster", "slower", even=1.0)}
    return row


def _names(folders: Sequence[Path]) -> list[str]:
    above = Path(commonpath([folder.parent for folder in folders]))
    return [str(folder.relative_to(above)) for folder in folders]


def _matches(pattern: Path) -> list[Path]:
    if pattern.exists():  # also where a folder's name holds what patterns are made of
        return [pattern.resolve()]
    root = Path(pattern.anchor)
    return [path.resolve() for path in sorted(root.glob(str(pattern.relative_to(pattern.anchor))))]


def _trainings(folders: Sequence[Path]) -> list[Path]:
    """The folders of training runs among these and below them, each once, in order."""
    configs = [config for folder in folders for config in sorted(folder.rglob("config.yaml"))]
    kept = ("receipt.json", "metrics.csv")
    runs = [one.parent for one in configs if any((one.parent / name).is_file() for name in kept)]
    return list(dict.fromkeys(runs))
