"""Training runs on one page, also those that were stopped or come from an earlier version."""

import json

import pytest
import yaml

from vitrail.bench import run
from vitrail.bench.measurement import Point
from vitrail.bench.training_runs import MOST_POINTS, Run, _ends, curves, find

from .made_up import config

METRICS = """\
step,train/loss,lr,train/images_per_second,epoch,val/acc,val/loss,test/acc
9,2.0,0.001,1000.0,0,,,
19,,,,0,0.5,1.5,
19,1.0,0.002,1200.0,1,,,
29,0.75,0.001,1400.0,1,,,
39,,,,1,0.25,1.75,
39,0.5,0.0,1600.0,1,,,
40,,,,2,,,0.375
"""
LAYER = {
    "requested": "auto",
    "chosen": "eager",
    "variant": None,
    "why": "fastest",
    "rejected": {"flex": "cannot"},
    "times_ms": {"eager": 1.5, "sdpa": 2.5},
    "gate": [{"errors": {"out": 0.001, "dq": 0.004}, "allowed": {"out": 0.01, "dq": 0.01}}],
}
RECEIPT = {
    "environment": {"cpu": {"name": "x", "cores": 2}},
    "precision": "32-true",
    "compiled": False,
    "layers": {"blocks.0.attn": LAYER, "blocks.1.attn": LAYER},
    "kernels": {"step": 0, "forward": {"aten::bmm": 4}, "backward": {"aten::bmm_backward": 4}},
}


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
def show(tmp_path, monkeypatch):
    """Collect runs: the rows by run, and the page."""
    monkeypatch.chdir(tmp_path)

    def call(patterns):
        (tmp_path / "out").mkdir()
        run(config(runs=patterns), tmp_path / "out", overrides=["runs=x"])
        results = json.loads((tmp_path / "out/results.json").read_text(encoding="utf-8"))
        page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
        return {row["run"]: row for row in results["rows"]}, page

    return call


def test_final_and_best_figures_and_what_differs_are_a_row_a_run(show, tmp_path, capsys):
    trained(tmp_path / "runs/a")
    better = METRICS.replace("0.375", "0.875")
    trained(tmp_path / "runs/b", metrics=better, backend="eager", model={"dim": 48, "depth": 2})
    rows, page = show("runs/*")
    assert rows["a"] == {
        "run": "a",
        "backend": "auto",
        "model.depth": None,
        "steps": 40,
        "test/acc": 0.375,
        "train/loss": 0.5,
        "val/loss": 1.75,
        "best val/loss": 1.5,
        "val/acc": 0.25,
        "best val/acc": 0.5,
        "train/images_per_second_p10": pytest.approx(1060),
        "train/images_per_second": 1300,
        "train/images_per_second_p90": pytest.approx(1540),
        "attention": "eager in 2",
        "refused": "",
    }
    assert (rows["b"]["backend"], rows["b"]["model.depth"]) == ("eager", 2)
    printed = capsys.readouterr().out
    for sentence in (
        "the configs of the 2 runs differ in backend, model.depth",
        "test/acc: highest 0.875 in b, lowest 0.375 in a",
    ):
        assert sentence in page
        assert sentence in printed
    assert page.count("<svg") == 5
    for name in ("train_loss", "val_acc", "lr"):
        assert (tmp_path / f"out/charts/{name}.png").is_file()
    for part in ("rejected", "flex: cannot", "40% of what is allowed", "aten::bmm_backward"):
        assert part in page


def test_runs_that_share_the_best_figure_are_all_named():
    rows = [{"run": name, "test/acc": acc} for name, acc in (("a", 0.5), ("b", 0.5), ("c", 0.25))]
    assert [*_ends(rows)] == ["test/acc: highest 0.5 in a and b, lowest 0.25 in c"]
    assert [*_ends(rows[:2])] == ["test/acc: highest 0.5 in a and b"]


def test_a_run_that_was_stopped_is_shown_with_what_it_has(show, tmp_path):
    trained(tmp_path / "runs/whole")
    trained(tmp_path / "runs/young", metrics=None, seed=1)
    trained(tmp_path / "runs/cut", metrics=METRICS[: METRICS.index("1.75") + 3], receipt=None)
    rows, page = show("runs")
    assert rows["young"]["refused"] == "it wrote no metrics.csv"
    assert rows["young"]["steps"] is None
    assert rows["cut"]["best val/loss"] == rows["cut"]["val/loss"] == 1.5, "half a line is none"
    assert rows["cut"]["attention"] is None
    assert "it wrote no metrics.csv" in page


def test_a_loss_that_is_no_number_is_said(show, tmp_path):
    trained(tmp_path / "runs/a", metrics=METRICS.replace("39,0.5", "39,nan"))
    rows, page = show("runs/a")
    assert rows["a"]["train/loss"] is None
    assert rows["a"]["refused"] == "train/loss is nan"
    assert "train/loss is nan" in page


def test_a_receipt_of_an_earlier_version_is_read_for_what_it_holds(show, tmp_path):
    layer = {"requested": "sdpa", "chosen": "sdpa", "why": "named"}
    old = {"environment": {}, "layers": {"blocks.0.attn": layer}}
    trained(tmp_path / "runs/a", receipt=old)
    rows, _ = show(["runs/a"])
    assert rows["a"]["attention"] == "sdpa in 1"


def test_runs_are_found_below_what_a_pattern_matches_each_once_and_nothing_else_is(tmp_path):
    one = trained(tmp_path / "runs/sweep/0")
    two = trained(tmp_path / "runs/sweep/1[x]")
    (one / ".hydra").mkdir()
    (one / ".hydra/config.yaml").write_text("seed: 0")
    (tmp_path / "runs/bench").mkdir()
    (tmp_path / "runs/bench/results.json").write_text("{}")
    assert find([str(tmp_path / "runs/*"), str(one)]) == [one, two]
    assert find([str(two)]) == [two], "a folder's own name is no pattern"
    assert find([str(tmp_path / "nothing*")]) == []


def test_a_pattern_without_runs_is_refused(show):
    with pytest.raises(ValueError, match="runs=nowhere,none leads to no training run; name"):
        show(["nowhere", "none"])


def test_a_long_curve_is_thinned_and_keeps_its_ends(tmp_path):
    lines = [f"{step},{step / 7}" for step in range(5000)]
    metrics = "\n".join(["step,train/loss", *lines, ""])
    one = Run.read(trained(tmp_path / "a", metrics=metrics), "a")
    [chart] = curves([one])
    points = chart.lines["a"]
    assert len(points) == MOST_POINTS
    assert (points[0].x, points[-1].x) == (0, 4999)
    assert all(point.y == pytest.approx(point.x / 7) for point in points)


def test_one_run_with_one_figure_has_a_page_too(show, tmp_path):
    trained(tmp_path / "runs/a b", metrics="step,val/acc\n0,0.5\n")
    rows, page = show("runs/a b")
    assert rows["a b"]["best val/acc"] == 0.5
    assert "One training run" in page
    assert "<svg" not in page, "a point is no curve"


def test_accuracies_are_drawn_by_the_time_that_training_had_taken(tmp_path):
    metrics = "step,val/acc,train/seconds\n9,,10.0\n9,0.25,10.5\n19,0.5,20.5\n29,0.75,\n"
    timed = Run.read(trained(tmp_path / "a", metrics=metrics), "a")
    earlier = Run.read(trained(tmp_path / "b"), "b")
    by_time, by_step = curves([timed, earlier])[:2]
    assert by_time.x == "training, seconds"
    assert by_time.lines == {"a": [Point(10.5, 0.25), Point(20.5, 0.5)]}, "earlier runs have none"
    assert [*by_step.lines] == ["b"], "train/loss of the other"
    assert by_step.x == "optimizer step"
    assert "train/seconds" not in [chart.name for chart in curves([timed])]
