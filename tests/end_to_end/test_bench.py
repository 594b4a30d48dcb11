"""`bench.py`: the same rows in both files, reasons in place of figures, refusals in one line."""

import csv
import json

import pytest

from vitrail.attention import backends
from vitrail.attention.backends import flex

TINY = (
    "trainer=cpu", "logger=none", "bench.shapes=[[2,2,16,8],[1,2,[3,4],6]]", "bench.rounds=3",
    "bench.dtypes=[float32]", "bench.masks=[none,mask]", "hydra.run.dir=bench",
)  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch):
    monkeypatch.setattr(flex, "missing_tool", lambda device: "a compiler")


def test_both_files_hold_one_row_a_backend_pass_and_combination(command, tmp_path):
    answer = command("bench", *TINY)
    assert (answer.code, answer.err) == (0, "")
    table = list(csv.DictReader((tmp_path / "bench/results.csv").read_text().splitlines()))
    results = json.loads((tmp_path / "bench/results.json").read_text())
    assert results["environment"]["packages"]["torch"]
    plain = [
        {key: "" if value is None else str(value) for key, value in row.items()}
        for row in results["rows"]
    ]
    assert table == plain
    assert len(table) == len(backends.names()) * 2 * 2 * 2
    for row in table:
        if row["refused"]:
            assert row["time_ms"] == ""
        else:
            assert 0 < float(row["time_ms_p10"]) <= float(row["time_ms_p90"])
    assert {row["backend"] for row in table if not row["refused"]} >= {"eager", "sdpa_flash"}


def test_a_backend_that_cannot_gives_its_reason(command, tmp_path, monkeypatch):
    from vitrail.attention.backends.sdpa_flash import SdpaFlash

    monkeypatch.setattr(SdpaFlash, "refuse", lambda self, request: ["take so few keys"])
    answer = command("bench", *TINY, "bench.backends=[eager,sdpa_flash]")
    assert answer.code == 0
    rows = json.loads((tmp_path / "bench/results.json").read_text())["rows"]
    assert {row["refused"] for row in rows if row["backend"] == "sdpa_flash"} == {
        "cannot take so few keys"
    }
    assert all(row["time_ms"] is None for row in rows if row["backend"] == "sdpa_flash")


def test_patterns_and_the_model_s_own_shape_are_chosen_as_in_training(command, tmp_path):
    answer = command(
        "bench", *TINY, "model=vit_micro", "pattern=swin", "bench.shapes=null",
        "bench.backends=[eager]", "bench.masks=[none]",
    )  # fmt: skip
    assert (answer.code, answer.err) == (0, "")
    rows = json.loads((tmp_path / "bench/results.json").read_text())["rows"]
    assert {row["map"].partition(" + ")[0] for row in rows} == {"4 x 4"}
    assert {row["pattern"] for row in rows} == {
        "Window(size=(4, 4), shift=(0, 0))", "Window(size=(4, 4), shift=(2, 2))",
    }  # fmt: skip


def test_loading_is_measured_on_the_data_that_the_command_names(command, tmp_path):
    answer = command(
        "bench", "bench=data", "data=synthetic", "data.dataset.train=300", "data.batch_size=64",
        "bench.workers=[0]", "bench.augments=[own,crop_flip]", "bench.rounds=3", "logger=none",
        "hydra.run.dir=bench",
    )  # fmt: skip
    assert (answer.code, answer.err) == (0, "")
    rows = json.loads((tmp_path / "bench/results.json").read_text())["rows"]
    measured = [(row["augment"], row["pipeline"]) for row in rows if not row["refused"]]
    assert sorted(measured) == [
        ("crop_flip", "torchvision"), ("crop_flip", "vitrail"),
        ("own", "torchvision"), ("own", "vitrail"),
    ]  # fmt: skip
    assert {row["images"] for row in rows if not row["refused"]} == {256}, "270 in whole batches"


@pytest.mark.parametrize(
    "override, message",
    {
        "bench.shapes=[[2,2,16]]": "bench.shapes has [2, 2, 16]; a shape is [batch, heads, tokens,",
        "bench.shapes=[]": "bench.shapes=[] leaves nothing to measure",
        "bench.dtypes=[float31]": "bench.dtypes has float31; use float32, bfloat16",
        "bench.masks=[dense]": "bench.masks has dense; use none, padding, mask",
        "bench.backends=[flex2]": "backend=flex2 does not exist",
        "bench.rounds=0": "bench.rounds=0 shows no noise; use 3 or more",
        "bench.patterns=[windw]": "pattern=windw does not exist; did you mean window or",
        "bench.patterns=[{_target_: vitrail.attention.patterns.window.Window, size: 0}]": "size=0",
    }.items(),
)
def test_what_cannot_be_measured_is_refused_in_one_line(command, override, message):
    answer = command("bench", "logger=none", override)
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert message in answer.err
