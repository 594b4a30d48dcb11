"""`compare=`: folders of measurements, or of trainings, side by side."""

import json
from collections.abc import Mapping, Sequence
from os.path import commonpath
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from vitrail.bench.harness import command, console_of, machine
from vitrail.bench.report import ENDS, Chart, Report, Row, print_table, publish, table_of
from vitrail.bench.results import RESULTS, flat, read
from vitrail.bench.statistics import unpaired_ratio, verdict
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
        report, printed = trainings(trained, command(overrides))
    elif len(measured) > 1:
        report, printed = measurements(measured, command(overrides))
    else:
        raise UserError(
            f"compare={','.join(map(str, patterns))} finds {len(measured)} measurements and no "
            "training; name two folders of bench.py, or one or more of train.py"
        )
    main = report.tables[printed]
    most = [name for name in main if not name.startswith(("train/", "val/", "lr"))]
    print_table(console_of(), printed, main[most])
    publish(run_dir, report)


def measurements(folders: Sequence[Path], line: str) -> tuple[Report, str]:
    """Every figure of each folder beside that of the first; rows are matched by their keys.

    Times are compared by their rounds, which were not taken in turn: the interval is that of the
    rounds' spread alone. Returns the report and the title of its main table.
    """
    read_all = [read(folder) for folder in folders]
    first = read_all[0][0]
    for folder, (subject, _) in zip(folders, read_all, strict=True):
        if subject.bench != first.bench:
            raise UserError(
                f"compare takes measurements of one kind, got bench={first.bench} in {folders[0]} "
                f"and bench={subject.bench} in {folder}"
            )
    names = _names(folders)
    # A key that is one thing in all rows of each folder, and another in another, such as the
    # device, is what is compared.
    values = {key: [{row.get(key) for row in rows} for _, rows in read_all] for key in first.keys}
    apart = [key for key, sets in values.items() if _tells_apart(sets)]
    keys = [key for key in first.keys if key not in apart]
    base = {_key(row, keys): row for row in read_all[0][1]}
    rows = []
    for name, (_, own) in list(zip(names, read_all, strict=True))[1:]:
        for row in own:
            if before := base.get(_key(row, keys)):
                words = {key: row.get(key) for key in keys}
                rows += [
                    {**words, "folder": name, **figure}
                    for figure in _figures(before, row, skip=(*first.keys, *COUNTS))
                ]
    if not rows:
        raise UserError(
            f"compare finds no row of {folders[0]} in another folder; measure the same "
            f"{', '.join(keys)} in all"
        )
    frame = table_of(rows).rename(columns={"first": names[0]})
    details = [
        ("environments", {n: s.environment for n, (s, _) in zip(names, read_all, strict=True)}),
        ("configs", {n: s.settings for n, (s, _) in zip(names, read_all, strict=True)}),
    ]
    title = f"Ratios to {names[0]}"
    report = Report(
        title=f"bench={first.bench}: {', '.join(names)}",
        subtitle=". ".join(
            f"{name}: {machine(subject.environment)}"
            for name, (subject, _) in zip(names, read_all, strict=True)
        ),
        command=line,
        rows=frame,
        tables={title: frame}
        | {f"Where the {what} differ": differing(trees) for what, trees in details},
    )
    return report, title


def trainings(folders: Sequence[Path], line: str) -> tuple[Report, str]:
    """Curves, final figures, receipts, and where configs differ; a run that was stopped is one too.

    Returns the report and the title of its main table.
    """
    names = _names(folders)
    configs, receipts, parts = {}, {}, []
    for name, folder in zip(names, folders, strict=True):
        configs[name] = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        configs[name].pop("logger", None)  # computes nothing
        if (path := folder / "receipt.json").is_file():
            receipts[name] = json.loads(path.read_text(encoding="utf-8"))
        parts.append(read_metrics(folder / "metrics.csv").assign(run=name))
    metrics = pd.concat(parts)
    settings = differing(configs)
    figures = _final(metrics, names)
    if len(settings) <= FEW and not settings.empty:
        figures = (
            settings.set_index("key").T.rename_axis("run").reset_index().merge(figures, "right")
        )
    layers = [row for name, receipt in receipts.items() for row in _layers(name, receipt)]
    environments = {name: receipt["environment"] for name, receipt in receipts.items()}
    tables = {
        "Final figures": figures,
        "Where the configs differ": settings,
        "Receipts": table_of(layers),
        "Where the environments differ": differing(environments),
    }
    title = f"{len(folders)} training runs" if len(folders) > 1 else "One training run"
    above = commonpath([folder.parent for folder in folders])
    details = {f"Config of {names[0]}": configs[names[0]]}
    report = Report(title, above, line, figures, tables, curves(metrics), details)
    return report, "Final figures"


def curves(metrics: pd.DataFrame) -> list[Chart]:
    """A chart for each metric of which some run has more than one point: a line a run.

    Accuracies come first, over the seconds of training.
    """
    names = [name for name in metrics if name not in ("step", "run", "epoch", SECONDS)]
    charts = []
    if SECONDS in metrics:
        by_step = metrics.groupby(["run", "step"], sort=False).max().reset_index()
        by_step = by_step.dropna(subset=[SECONDS])
        charts = [
            Chart(f"{name} by time", by_step, SECONDS, name, "run")
            for name in ("val/acc", "train/acc")
            if name in by_step and by_step[name].notna().sum() > 1
        ]
    for name in names:
        part = metrics.dropna(subset=[name])
        runs = [run for _, run in part.groupby("run", sort=False)]
        if max(map(len, runs), default=0) > 1:
            thin = pd.concat(run.iloc[:: -(-len(run) // MOST_POINTS)] for run in runs)
            charts.append(Chart(name, thin, "step", name, "run"))
    return charts


def differing(trees: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """One row for each dotted key whose leaves differ between the named trees: a column a tree."""
    leaves = {name: flat(tree) for name, tree in trees.items()}
    frame = pd.DataFrame({n: {k: str(v) for k, v in tree.items()} for n, tree in leaves.items()})
    frame = frame[frame.nunique(axis=1, dropna=False) > 1]
    return frame.rename_axis("key").reset_index()


def _final(metrics: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """What each run ended with, its best accuracy on val, and the median of its speed."""
    runs = metrics.groupby("run", sort=False)
    last = runs.last().reindex(names)  # of each column the last that is there
    trained = metrics[metrics.filter(like="train/").notna().any(axis=1)]
    last["steps"] = trained.groupby("run")["step"].max() + 1
    if "val/acc" in metrics:
        last["best val/acc"] = runs["val/acc"].max()
    if SPEED in metrics:
        last[SPEED] = runs[SPEED].median()
    first = sorted(last, key=lambda name: not name.startswith(("test/", "best ", SPEED, SECONDS)))
    return last[first].drop(columns=["step", "epoch"], errors="ignore").reset_index()


def _layers(name: str, receipt: Mapping[str, Any]) -> list[Row]:
    """A row for each kind of layer, and how many there are of it; older receipts hold less."""
    layers = [{k: str(layer.get(k)) for k in RECEIPT} for layer in receipt["layers"].values()]
    seen = receipt.get("kernels") or {"forward": {}, "backward": {}}
    kernels = ", ".join([*seen["forward"], *seen["backward"]])
    whole = {"precision": receipt.get("precision"), "compiled": receipt.get("compiled")}
    kinds = {json.dumps(layer): layer for layer in layers}.values()
    return [
        {"run": name, "layers": layers.count(kind), **kind, **whole, "kernels": kernels}
        for kind in kinds
    ]


def _figures(before: Row, row: Row, *, skip: Sequence[str]) -> list[Row]:
    """Both values of each figure that two rows have, their ratio, and for times the verdict."""
    ends = tuple(end for pair in ENDS for end in pair)
    found = []
    for column, value in row.items():
        other = before.get(column)
        numbers = all(
            isinstance(one, int | float) and not isinstance(one, bool) for one in (value, other)
        )
        if column in skip or column.endswith(ends) or not numbers:
            continue
        figure = {"figure": column, "first": other, "value": value}
        figure["ratio"] = value / other if other else None
        if column in TIMES and min(len(row["rounds_ms"]), len(before["rounds_ms"])) > 1:
            ratio = unpaired_ratio(row["rounds_ms"], before["rounds_ms"])
            figure |= ratio.columns("ratio")
            figure["verdict"] = verdict(ratio, "faster", "slower", even=1.0)
        found.append(figure)
    return found


def _key(row: Row, keys: Sequence[str]) -> tuple:
    return tuple(row.get(key) for key in keys)


def _tells_apart(sets: Sequence[set]) -> bool:
    return all(len(one) == 1 for one in sets) and len(set.union(*sets)) > 1


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
    return list(
        dict.fromkeys(
            config.parent
            for folder in folders
            for config in sorted(folder.rglob("config.yaml"))
            if any((config.parent / kept).is_file() for kept in ("receipt.json", "metrics.csv"))
        )
    )
