"""Rows are kept cell by cell: a kill loses at most the cell that was being measured."""

import csv
import json
import os

import pytest

from vitrail.bench.results import CELLS, Results, Subject, settings_in, write_tables

from .made_up import row

HERE = {"packages": {"torch": "2.14.1"}, "cpu": {"threads": 2}, "gpu": None}
SUBJECT = Subject("attention", {"seed": 0, "bench": {"rounds": 9}}, HERE, "bench.py", "2026-01-01")
CELL = {count: [row("eager", count), row("größer", count)] for count in (64, 197, 1024)}


def filled(folder):
    results = Results(folder, SUBJECT)
    for count, rows in CELL.items():
        results.add(f"tokens={count}", rows)
    return results


def test_what_was_kept_is_there_again(tmp_path):
    first = filled(tmp_path)
    again = Results(tmp_path, SUBJECT)
    assert again.rows == first.rows == [one for rows in CELL.values() for one in rows]
    assert again.cell("tokens=197") == CELL[197]
    assert again.cell("tokens=65") is None
    assert settings_in(tmp_path) == SUBJECT.settings


def test_a_kill_at_any_byte_costs_the_cell_that_was_being_written_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # thousands of times, and no power to lose
    filled(tmp_path)
    path = tmp_path / CELLS
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        kept = max(0, whole[:size].count(b"\n") - 1)  # the first line says what is measured
        results = Results(tmp_path, SUBJECT)
        there = [f"tokens={count}" for count in CELL if results.cell(f"tokens={count}")]
        assert there == [f"tokens={count}" for count in CELL][:kept]
        for count, rows in CELL.items():
            if results.cell(f"tokens={count}") is None:
                results.add(f"tokens={count}", rows)
        assert path.read_bytes() == whole


def test_it_is_the_same_measurement_however_often_it_is_started(tmp_path):
    later = Subject("attention", SUBJECT.settings, HERE, "bench.py into=here", "2026-01-02")
    first = filled(tmp_path)
    again = Results(tmp_path, later)
    assert again.id == first.id
    assert again.subject == SUBJECT
    (tmp_path / "other").mkdir()
    assert Results(tmp_path / "other", later).id != first.id


def test_a_full_disk_is_named_and_leaves_the_cells_before(tmp_path, full_disk):
    results = Results(tmp_path, SUBJECT)
    results.add("tokens=64", CELL[64])
    size = (tmp_path / CELLS).stat().st_size
    with full_disk(size + 10), pytest.raises(OSError, match=r"cells\.jsonl"):
        results.add("tokens=197", CELL[197])
    assert Results(tmp_path, SUBJECT).rows == CELL[64]


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"bench": "step"},
            "holds a measurement of attention and this is one of step; start it in",
        ),
        (
            {"settings": {"seed": 0, "bench": {"rounds": 5}}},
            "was measured with bench.rounds=9 and this asks for bench.rounds=5; leave it as it was",
        ),
        (
            {"settings": {"seed": 0, "bench": {"rounds": 9}, "model": {"dim": 48}}},
            "was measured with model.dim=None and this asks for model.dim=48; leave it",
        ),
        (
            {"environment": {**HERE, "packages": {"torch": "2.15.0"}}},
            "was measured where packages.torch is 2.14.1 and here it is 2.15.0; start a new folder",
        ),
    ],
)
def test_a_folder_of_something_else_is_refused_in_one_line(tmp_path, change, message):
    filled(tmp_path)
    before = (tmp_path / CELLS).read_bytes()
    other = {name: getattr(SUBJECT, name) for name in SUBJECT.__dataclass_fields__} | change
    with pytest.raises(ValueError, match="measure") as refusal:
        Results(tmp_path, Subject(**other))
    assert f"{tmp_path} {message}" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert (tmp_path / CELLS).read_bytes() == before


def test_settings_are_compared_as_they_are_read_again(tmp_path):
    subject = Subject("attention", {"shapes": ((1, 2), (3, 4)), "by": {1: 2}}, HERE, "", "")
    Results(tmp_path, subject)
    Results(tmp_path, subject)


@pytest.mark.parametrize(
    "number, mend", [(1, "start a new folder"), (2, "delete it, and its cell is measured again")]
)
def test_a_damaged_line_is_named(tmp_path, number, mend):
    filled(tmp_path)
    lines = (tmp_path / CELLS).read_bytes().splitlines(keepends=True)
    lines[number - 1] = b"\0" * 8 + b"\n"
    (tmp_path / CELLS).write_bytes(b"".join(lines))
    with pytest.raises(ValueError, match=rf"line {number} of .* is damaged; {mend}"):
        Results(tmp_path, SUBJECT)


def test_a_figure_that_is_not_finite_is_a_reason(tmp_path):
    results = Results(tmp_path, SUBJECT)
    [kept] = results.add("a", [row("eager", 64, forward_ms=float("nan"), peak_mib=float("inf"))])
    assert (kept["forward_ms"], kept["peak_mib"]) == (None, None)
    assert kept["refused"] == "forward_ms is nan; peak_mib is inf"
    assert kept["forward_ms_p10"] is not None
    assert Results(tmp_path, SUBJECT).rows == [kept]


def test_rows_with_other_columns_are_refused_before_they_are_kept(tmp_path):
    results = Results(tmp_path, SUBJECT)
    results.add("a", CELL[64])
    with pytest.raises(ValueError, match=r"rows of b differ .* in columns: \['peak_gib'\]"):
        results.add("b", [row("eager", 197, peak_gib=1.0)])
    assert Results(tmp_path, SUBJECT).cell("b") is None


def test_both_tables_hold_the_same_rows(tmp_path):
    rows = [*CELL[64], row("none", 64), row('a "b", c\nd', 64)]
    write_tables(tmp_path, rows, {"command": "python bench.py"})
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert results == {"command": "python bench.py", "rows": rows}
    with (tmp_path / "results.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert table == [
        {key: "" if value is None else str(value) for key, value in one.items()} for one in rows
    ]


def test_lines_are_on_disk_before_the_next_cell_is_measured(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_size))
    filled(tmp_path)
    assert len(synced) == 1 + len(CELL)
    assert synced[-1] == (tmp_path / CELLS).stat().st_size
