"""`bench.py`: the same rows in both files, reasons in place of figures, refusals in one line."""

import pandas as pd
import pytest

from vitrail.attention import backends
from vitrail.attention.backends import flex
from vitrail.bench.results import read

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
    table = pd.read_csv(tmp_path / "bench/results.csv", keep_default_na=False, na_values="")
    subject, rows = read(tmp_path / "bench")
    assert subject.environment["packages"]["torch"]
    assert len(table) == len(rows) == len(backends.names()) * 2 * 2 * 2
    assert table["backend"].tolist() == [row["backend"] for row in rows]
    measured = table["refused"].isna()
    assert table["time_ms"].notna().equals(measured)
    assert (table["time_ms_p10"] <= table["time_ms_p90"])[measured].all()
    assert set(table["backend"][measured]) >= {"eager", "sdpa_flash"}


def test_loading_is_measured_on_the_data_that_the_command_names(command, tmp_path):
    answer = command(
        "bench", "bench=data", "data=synthetic", "data.dataset.train=300", "data.batch_size=64",
        "bench.workers=[0]", "data.augment.flip=true", "bench.rounds=3", "logger=none",
        "hydra.run.dir=bench",
    )  # fmt: skip
    assert (answer.code, answer.err) == (0, "")
    _, rows = read(tmp_path / "bench")
    assert sorted(row["pipeline"] for row in rows) == ["torchvision", "vitrail"]
    assert {row["images"] for row in rows} == {256}, "270 in whole batches"


@pytest.mark.parametrize(
    "override, message",
    {
        "bench.shapes=[[2,2,16]]": "bench.shapes takes [batch, heads, tokens, head width],",
        "bench.masks=[keys]": "bench.masks takes none, padding, mask, bias, got keys",
        "bench.rounds=0": "bench.rounds must be >= 3, got 0",
        "bench.patterns=[windw]": "pattern=windw does not exist; did you mean window or",
        "bench.patterns=[{_target_: vitrail.attention.patterns.window.Window, size: 0}]": "size=0",
    }.items(),
)
def test_what_cannot_be_measured_is_refused_in_one_line(command, override, message):
    answer = command("bench", "logger=none", override)
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert message in answer.err
