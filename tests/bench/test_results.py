"""Rows are kept cell by cell: a kill loses at most the cell that was being measured."""

import os

import pytest

from vitrail.bench.results import RESULTS, Results, Subject, read

from .made_up import row

HERE = {"packages": {"torch": "2.14.1"}, "cpu": {"threads": 2}, "gpu": None}
SETTINGS = {"seed": 0, "bench": {"rounds": 9}}
SUBJECT = Subject("attention", SETTINGS, HERE, "bench.py", "2026-01-01", ["backend"])
CELLS = {str(count): [row("eager", count), row("größer", count)] for count in (64, 197, 1024)}


def filled(folder) -> Results:
    results = Results(folder, SUBJECT)
    for cell, rows in CELLS.items():
        results.add(cell, rows)
    return results


def test_what_was_kept_is_there_again(tmp_path):
    first, again = filled(tmp_path), Results(tmp_path, SUBJECT)
    assert again.rows == first.rows == [one for rows in CELLS.values() for one in rows]
    assert again.cells == CELLS
    assert read(tmp_path) == (SUBJECT, again.rows)


def test_a_kill_at_any_byte_costs_the_cell_that_was_being_written_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # thousands of times, and no power to lose
    filled(tmp_path)
    path = tmp_path / RESULTS
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        kept = max(0, whole[:size].count(b"\n") - 1)  # the first line says what is measured
        results = Results(tmp_path, SUBJECT)
        assert [*results.cells] == [*CELLS][:kept]
        for cell in [*CELLS][kept:]:
            results.add(cell, CELLS[cell])
        assert path.read_bytes() == whole


def test_it_is_the_same_measurement_however_often_it_is_started(tmp_path):
    later = Subject("attention", SETTINGS, HERE, "bench.py into=here", "2026-01-02", ["backend"])
    first, again = filled(tmp_path), Results(tmp_path, later)
    assert (again.id, again.subject) == (first.id, SUBJECT)
    (tmp_path / "other").mkdir()
    assert Results(tmp_path / "other", later).id != first.id


def test_a_full_disk_is_named_and_leaves_the_cells_before(tmp_path, full_disk):
    results = Results(tmp_path, SUBJECT)
    results.add("64", CELLS["64"])
    size = (tmp_path / RESULTS).stat().st_size
    with full_disk(size + 10), pytest.raises(OSError, match=r"results\.jsonl"):
        results.add("197", CELLS["197"])
    assert Results(tmp_path, SUBJECT).rows == CELLS["64"]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"bench": "step"}, "was measured with measurement=attention, got step; use a new folder"),
        (
            {"settings": {"seed": 0, "bench": {"rounds": 5}}},
            "was measured with bench.rounds=9, got 5; use a new folder, and set both side by side",
        ),
        (
            {"settings": {**SETTINGS, "model": {"dim": 48}}},
            "was measured with model.dim=None, got 48; use a new folder",
        ),
        (
            {"environment": {**HERE, "packages": {"torch": "2.15.0"}}},
            "was measured with environment.packages.torch=2.14.1, got 2.15.0; use a new",
        ),
    ],
)
def test_a_folder_of_something_else_is_refused_in_one_line(tmp_path, change, message):
    filled(tmp_path)
    before = (tmp_path / RESULTS).read_bytes()
    with pytest.raises(ValueError, match="got") as refusal:
        Results(tmp_path, Subject(**vars(SUBJECT) | change))
    assert f"{tmp_path} {message}" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert (tmp_path / RESULTS).read_bytes() == before


def test_settings_are_compared_as_they_are_read_again(tmp_path):
    odd = {"shapes": ((1, 2), (3, 4)), "by": {1: 2}}
    for _ in range(2):
        Results(tmp_path, Subject("attention", odd, HERE, "", "", ["backend"]))


@pytest.mark.parametrize(
    "number, way", [(1, "use a new folder"), (2, "delete it, and its cell is measured again")]
)
def test_a_damaged_line_is_named(tmp_path, number, way):
    filled(tmp_path)
    lines = (tmp_path / RESULTS).read_bytes().splitlines(keepends=True)
    lines[number - 1] = b"\0" * 8 + b"\n"
    (tmp_path / RESULTS).write_bytes(b"".join(lines))
    with pytest.raises(ValueError, match=rf"line {number} of .* is damaged; {way}"):
        Results(tmp_path, SUBJECT)


def test_a_figure_that_is_not_finite_is_a_reason(tmp_path):
    results = Results(tmp_path, SUBJECT)
    results.add("a", [row("eager", 64, forward_ms=float("nan"), peak_mib=float("inf"))])
    [kept] = Results(tmp_path, SUBJECT).rows
    assert (kept["forward_ms"], kept["peak_mib"]) == (None, None)
    assert kept["refused"] == "forward_ms is nan; peak_mib is inf"
    assert kept["forward_ms_p10"] is not None


def test_lines_are_on_disk_before_the_next_cell_is_measured(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_size))
    filled(tmp_path)
    assert len(synced) == 1 + len(CELLS)
    assert synced[-1] == (tmp_path / RESULTS).stat().st_size
