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
    subjects, parts = zip(*map(read, folders), strict=True)
    kinds = {subject.bench: folder for subject, folder in zip(subjects, folders, strict=True)}
    if len(kinds) > 1:
        held = " and ".join(f"bench={kind} in {folder}" for kind, folder in kinds.items())
        raise UserError(f"compare takes measurements of one kind, got {held}")
    first, names = subjects[0], _names(folders)
    # A key that is one thing in all rows of each folder, and another in another, such as the
    # device, is what is compared.
    values = {key: [{row.get(key) for row in rows} for rows in parts] for key in first.keys}
    keys = [key for key, sets in values.items() if not _tells_apart(sets)]
    base = {_key(row, keys): row for row in parts[0]}
    rows = [
        {**{key: row.get(key) for key in keys}, "folder": name, **figure}
        for name, part in list(zip(names, parts, strict=True))[1:]
        for row in part
        if (before := base.get(_key(row, keys)))
        for figure in _figures(before, row, names[0], skip=(*first.keys, *COUNTS))
    ]
    if not rows:
        raise UserError(
            f"compare finds no row of {folders[0]} in another folder; measure the same "
            f"{', '.join(keys)} in all"
        )
    title, frame = f"Ratios to {names[0]}", table_of(rows)
    by_name = dict(zip(names, subjects, strict=True))
    tables = {
        title: frame,
        "Where the environments differ": differing({n: s.environment for n, s in by_name.items()}),
        "Where the configs differ": differing({n: s.settings for n, s in by_name.items()}),
    }
    machines = ". ".join(f"{name}: {machine(s.environment)}" for name, s in by_name.items())
    return Report(f"bench={first.bench}: {', '.join(names)}", machines, line, frame, tables), title


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
    metrics, settings = pd.concat(parts), differing(configs)
    figures = _final(metrics, names)
    if 0 < len(settings) <= FEW:
        beside = settings.set_index("key").T.rename_axis("run").reset_index()
        figures = beside.merge(figures, "right")
    environments = {name: receipt["environment"] for name, receipt in receipts.items()}
    tables = {
        "Final figures": figures,
        "Where the configs differ": settings,
        "Receipts": _layers(receipts),
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


def _layers(receipts: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """A row for each kind of layer, with how many there are; older receipts hold less."""
    rows = []
    for run, receipt in receipts.items():
        seen = receipt.get("kernels") or {"forward": (), "backward": ()}
        whole = {"run": run, "kernels": ", ".join([*seen["forward"], *seen["backward"]])}
        whole |= {key: str(receipt.get(key)) for key in ("precision", "compiled")}
        rows += [
            whole | {key: str(layer.get(key)) for key in RECEIPT}
            for layer in receipt["layers"].values()
        ]
    return pd.DataFrame(rows).value_counts(sort=False).rename("layers").reset_index()


def _figures(before: Row, row: Row, first: str, *, skip: Sequence[str]) -> list[Row]:
    """Both values of each figure that two rows have, their ratio, and for times the verdict."""
    ends = tuple(end for pair in ENDS for end in pair)
    found = []
    for column in (name for name in row if name not in skip and not name.endswith(ends)):
        one, other = row[column], before.get(column)
        if not {type(one), type(other)} <= {int, float}:
            continue
        figure = {"figure": column, first: other, "value": one}
        figure["ratio"] = one / other if other else None
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
