"""Folders side by side: measurements with ratios and verdicts, trainings with curves."""

import json
from dataclasses import asdict

import pandas as pd
import pytest
import yaml

from vitrail.bench import run
from vitrail.bench.compare import MOST_POINTS, curves, trainings
from vitrail.bench.results import RESULTS, Subject

from .made_up import config

HERE = {
    "vitrail": "0.1.0", "packages": {"torch": "2.14.1"}, "gpu": None,
    "cpu": {"name": "a [fast] cpu", "cores": 2, "threads": 2},
}  # fmt: skip
METRICS = """\
step,train/loss,lr,train/images_per_second,train/seconds,epoch,val/acc,test/acc
9,2.0,0.001,1000.0,,0,,
19,,,,10.5,0,0.5,
19,1.0,0.002,1200.0,,1,,
29,0.75,0.001,1400.0,,1,,
39,,,,20.5,1,0.25,
39,0.5,0.0,1600.0,,1,,
40,,,,,2,,0.375
"""
LAYER = {
    "requested": "auto", "chosen": "eager", "why": "fastest", "gate": "passed",
    "rejected": {"flex": "cannot"},
}  # fmt: skip
RECEIPT = {
    "environment": {"cpu": {"name": "x", "cores": 2}}, "precision": "32-true", "compiled": False,
    "layers": {"blocks.0.attn": LAYER, "blocks.1.attn": LAYER},
    "kernels": {"step": 0, "forward": {"aten::bmm": 4}, "backward": {"aten::bmm_backward": 4}},
}  # fmt: skip


def row(backend, ms, **changes):
    """Three rounds that stray by a hundredth."""
    rounds = [0.99 * ms, ms, 1.01 * ms]
    return {
        "backend": backend, "tokens": 64, "device": "cpu", "time_ms": ms, "time_ms_p10": rounds[0],
        "time_ms_p90": rounds[2], "rounds": 3, "rounds_ms": rounds, "peak_mib": 10.0, "auto": True,
        "refused": "", **changes,
    }  # fmt: skip


def kept(folder, rows, *, bench="attention", settings=None, environment=HERE):
    folder.mkdir(parents=True)
    keys = ["backend", "tokens", "device"]
    subject = Subject(bench, settings or {"seed": 0}, environment, "bench.py", "2026-01-01", keys)
    lines = [asdict(subject), {"cell": "a", "rows": rows}]
    (folder / RESULTS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def trained(folder, *, metrics=METRICS, receipt=RECEIPT, **settings):
    folder.mkdir(parents=True)
    whole = {"seed": 0, "backend": "auto", "logger": {"x": str(folder)}, "model": {"dim": 48}}
    (folder / "config.yaml").write_text(yaml.safe_dump(whole | settings))
    if metrics is not None:
        (folder / "metrics.csv").write_text(metrics)
    if receipt is not None:
        (folder / "receipt.json").write_text(json.dumps(receipt))
    return folder


@pytest.fixture
def compare(tmp_path, monkeypatch):
    """Compare folders below this test's own: the rows and the page that this leaves."""
    monkeypatch.chdir(tmp_path)

    def call(*patterns):
        (tmp_path / "out").mkdir()
        run(
            config(compare=[str(one) for one in patterns]),
            tmp_path / "out",
            overrides=["compare=x"],
        )
        return pd.read_csv(tmp_path / "out/results.csv"), (tmp_path / "out/report.html").read_text()

    return call


def test_times_of_two_folders_have_a_ratio_an_interval_and_a_verdict(compare, tmp_path, capsys):
    kept(tmp_path / "old", [row("eager", 10.0), row("sdpa", 5.0), row("flex", 1.0)])
    sdpa = row("sdpa", 5.01, peak_mib=20.0)
    kept(tmp_path / "new", [sdpa, row("eager", 20.0), row("other", 1.0)], settings={"seed": 1})
    rows, page = compare("old", "new")
    times = rows[rows["figure"] == "time_ms"].set_index("backend")
    assert times["verdict"].to_dict() == {"sdpa": "no difference shown", "eager": "slower"}
    eager = times.loc["eager"]
    assert (eager["old"], eager["value"], eager["folder"]) == (10.0, 20.0, "new")
    assert eager["ratio"] == pytest.approx(2.0)
    assert eager["ratio_low"] < 2 < eager["ratio_high"]
    memory = rows[rows["figure"] == "peak_mib"].set_index("backend")
    assert memory["ratio"].to_dict() == {"sdpa": 2.0, "eager": 1.0}
    assert memory["verdict"].isna().all(), "one reading shows no noise"
    assert set(rows["figure"]) == {"time_ms", "peak_mib"}
    assert "Ratios to old" in capsys.readouterr().out
    assert "Where the configs differ" in page
    assert "Where the environments differ" not in page


def test_what_each_folder_has_one_of_is_what_is_compared(compare, tmp_path):
    for number, device in enumerate(("cpu", "cuda", "mps")):
        rows = [row("eager", 10.0 / (number + 1), device=device)]
        kept(tmp_path / f"runs/{device}", rows)
    rows, _ = compare("runs/*")
    times = rows[rows["figure"] == "time_ms"]
    assert times["folder"].tolist() == ["cuda", "mps"]
    assert times["ratio"].tolist() == pytest.approx([0.5, 1 / 3])
    assert times["verdict"].tolist() == ["faster", "faster"]


def test_final_and_best_figures_and_what_differs_are_a_row_a_run(compare, tmp_path, capsys):
    trained(tmp_path / "runs/a")
    better = METRICS.replace("0.375", "0.875")
    trained(tmp_path / "runs/b", metrics=better, backend="eager", model={"dim": 48, "depth": 2})
    kept(tmp_path / "runs/bench", [row("eager", 1.0)])
    rows, page = compare("runs/*")
    assert rows.set_index("run").loc["a"].dropna().to_dict() == {
        "backend": "auto", "test/acc": 0.375, "best val/acc": 0.5, "train/images_per_second": 1300,
        "train/seconds": 20.5, "train/loss": 0.5, "val/acc": 0.25, "lr": 0.0, "steps": 40,
    }  # fmt: skip
    assert rows["test/acc"].tolist() == [0.375, 0.875]
    assert rows["model.depth"].tolist()[1] == 2
    printed = capsys.readouterr().out
    assert "left out, as a measurement among trainings" in printed
    assert "Final figures" in printed
    charts = {path.name for path in (tmp_path / "out/charts").iterdir()}
    assert charts >= {"train_loss.png", "val_acc.png", "lr.png", "val_acc_by_time.png"}
    assert page.count("<img") == len(charts) == 5
    for part in ("aten::bmm_backward", "fastest", "32-true"):
        assert part in page


def test_a_run_that_was_stopped_or_is_of_an_earlier_version_is_shown_with_what_it_has(
    compare, tmp_path
):
    trained(tmp_path / "runs/whole")
    trained(tmp_path / "runs/young", metrics=None, seed=1)
    old = {"environment": {}, "layers": {"blocks.0.attn": {"requested": "sdpa", "chosen": "sdpa"}}}
    cut = METRICS[: METRICS.index("40,") + 3]
    trained(tmp_path / "runs/cut", metrics=cut, receipt=old)
    trained(tmp_path / "runs/diverged", metrics=METRICS.replace("39,0.5", "39,nan"))
    rows, page = compare("runs")
    rows = rows.set_index("run")
    assert rows.loc["young"].drop(["seed"]).isna().all()
    assert pd.isna(rows.loc["cut", "test/acc"]), "half a line is none"
    assert rows.loc["cut", "steps"] == rows.loc["diverged", "steps"] == 40
    assert "sdpa" in page


def test_accuracies_are_drawn_by_the_time_that_training_had_taken(tmp_path):
    timed, earlier = trained(tmp_path / "a"), trained(tmp_path / "b", metrics="step,val/acc\n9,1\n")
    report = trainings([timed, earlier], "")
    by_time, first = report.charts[:2]
    assert (by_time.name, by_time.x) == ("val/acc by time", "train/seconds")
    assert by_time.points()[["x", "y", "line"]].values.tolist() == [
        [10.5, 0.5, "a"],
        [20.5, 0.25, "a"],
    ]
    assert first.x == "step"
    assert "train/seconds" not in [chart.name for chart in report.charts]


def test_a_long_curve_is_thinned_and_one_point_is_none():
    steps = pd.DataFrame({"step": range(5000), "run": "a", "test/acc": [None] * 4999 + [0.5]})
    [chart] = curves(steps.assign(**{"train/loss": steps["step"] / 7}))
    points = chart.points()
    assert MOST_POINTS / 2 < len(points) <= MOST_POINTS
    assert (points["y"] == points["x"] / 7).all()


def test_runs_are_found_below_what_a_pattern_matches_each_once(compare, tmp_path):
    one, two = trained(tmp_path / "runs/sweep/0"), trained(tmp_path / "runs/sweep/1[x]")
    (one / ".hydra").mkdir()
    (one / ".hydra/config.yaml").write_text("seed: 0")
    rows, _ = compare("runs/*", one, two)
    assert rows["run"].tolist() == ["0", "1[x]"], "a folder's own name is no pattern"


def test_one_run_with_one_figure_has_a_page_too(compare, tmp_path):
    trained(tmp_path / "runs/a b", metrics="step,val/acc\n0,0.5\n")
    rows, page = compare("runs/a b")
    assert rows["best val/acc"].tolist() == [0.5]
    assert "One training run" in page
    assert "<img" not in page, "a point is no curve"


@pytest.mark.parametrize(
    "patterns, message",
    [
        (["nowhere", "none"], "compare=nowhere,none finds 0 measurements and no training; name"),
        (["attention"], "compare=attention finds 1 measurements and no training; name two"),
        (["attention", "step"], "one kind, got bench=attention in .*attention and bench=step in"),
        (["attention", "other"], "finds no row of .*attention in another folder; measure the same"),
    ],
)
def test_what_cannot_be_compared_is_refused(compare, tmp_path, patterns, message):
    kept(tmp_path / "attention", [row("eager", 1.0), row("sdpa", 1.0)])
    kept(tmp_path / "step", [row("eager", 1.0)], bench="step")
    kept(tmp_path / "other", [row("flex", 1.0), row("flash_attn", 1.0)])
    with pytest.raises(ValueError, match=message):
        compare(*patterns)
