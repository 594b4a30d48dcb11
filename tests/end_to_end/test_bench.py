"""`bench.py`: the same rows in both files, and a reason where there are no figures."""

import csv
import json

import pytest

from vitrail.attention import backends

TINY = (
    "bench.shapes=[[2,2,16,8],[1,2,9,6]]", "bench.rounds=2", "bench.dtypes=[float32]",
    "bench.masks=[none,dense]", "hydra.run.dir=bench",
)  # fmt: skip


def test_both_files_hold_one_row_a_backend_and_combination(command, tmp_path):
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
    assert len(table) == len(backends.names()) * 2 * 2
    for row in table:
        if row["refused"]:
            continue
        assert float(row["forward_ms"]) > 0
        assert float(row["forward_backward_ms_p10"]) <= float(row["forward_backward_ms_p90"])


def test_a_backend_that_cannot_gives_its_reason(command, tmp_path, monkeypatch):
    from vitrail.attention.backends.sdpa_flash import SdpaFlash

    monkeypatch.setattr(SdpaFlash, "refuse", lambda self, request: ["take so few keys"])
    answer = command("bench", *TINY, "bench.backends=[eager,sdpa_flash]")
    assert answer.code == 0
    rows = json.loads((tmp_path / "bench/results.json").read_text())["rows"]
    assert {row["refused"] for row in rows if row["backend"] == "sdpa_flash"} == {
        "cannot take so few keys"
    }
    assert all(row["forward_ms"] is None for row in rows if row["backend"] == "sdpa_flash")


@pytest.mark.parametrize(
    "override, message",
    {
        "bench.shapes=[[2,2,16]]": "bench.shapes has [2, 2, 16]; a shape is [batch, heads, tokens,",
        "bench.shapes=[]": "bench.shapes=[] leaves nothing to measure",
        "bench.dtypes=[float31]": "bench.dtypes has float31; use float32, bfloat16",
        "bench.masks=[padding]": "bench.masks has padding; use none, keys, dense",
        "bench.backends=[flex2]": "backend=flex2 does not exist",
        "bench.rounds=0": "bench.rounds=0 measures nothing",
        "bench.device=cuda2": "bench.device=cuda2 is not in this machine; use cpu",
    }.items(),
)
def test_what_cannot_be_measured_is_refused_in_one_line(command, override, message):
    answer = command("bench", override)
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert message in answer.err
