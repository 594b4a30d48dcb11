"""The W&B run of a measurement holds every row, in the group of its folder."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from vitrail.bench.tracking import MOST_ROWS, group

from .made_up import measured

WANDB = {
    "_target_": "vitrail.tracking.wandb_run.WandbRun",
    "project": "vitrail",
    "entity": None,
    "mode": "offline",
    "name": None,
    "group": None,
    "tags": [],
    "log_model": False,
}


@pytest.fixture
def logged(tmp_path, offline_runs):
    """A measurement that is logged: its folder, its W&B runs, and the tables that they hold."""

    def call(**changes):
        folder = measured(tmp_path / "a folder", logger={"wandb": WANDB}, **changes)
        runs = offline_runs(folder)
        files = {
            run.id: path
            for run, path in zip(runs, sorted(folder.glob("wandb/offline-run-*")), strict=True)
        }
        tables = {}
        for run in runs:
            for record in run.history:
                for key, path in record.items():
                    if key.endswith(".path") and path.endswith(".table.json"):
                        content = json.loads(
                            (files[run.id] / "files" / path).read_text(encoding="utf-8")
                        )
                        tables[key.removesuffix(".path")] = content
        return folder, runs, tables

    return call


def csv_rows(folder):
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def as_in_csv(table):
    return [
        {
            name: "" if value is None else str(value)
            for name, value in zip(table["columns"], row, strict=True)
        }
        for row in table["data"]
    ]


def test_the_table_has_the_rows_of_the_csv_beside_charts_and_summary(logged, capsys):
    folder, [run], tables = logged()
    assert as_in_csv(tables["results"]) == csv_rows(folder)
    assert (run.exit_code, run.name, run.group) == (0, "made_up", "a folder")
    assert run.summary["made_up/eager/forward_ms"] == 1.5
    assert run.config["seed"] == 0
    assert run.config["environment"]["packages"]["torch"]
    assert list(folder.glob("wandb/offline-run-*/files/media/images/charts/speed_vs_tokens*.png"))
    assert f"W&B run: wandb sync '{folder}/wandb'" in capsys.readouterr().out


def test_forty_backends_at_many_shapes_lose_no_row(logged):
    """More than wandb takes in one table, of which it drops the rest without a word."""
    shapes = list(range(64, 64 + 260))
    backends = ["none", *(f"backend {number}" for number in range(39))]
    folder, [_], tables = logged(bench={"tokens": shapes, "backends": backends})
    rows = csv_rows(folder)
    assert len(rows) == 40 * 260 > MOST_ROWS
    assert [*tables] == ["results", "results_2"]
    assert [row for table in tables.values() for row in as_in_csv(table)] == rows


def test_a_measurement_that_is_shown_again_is_the_same_run(logged):
    _, [first], _ = logged()
    _, [_, second], _ = logged()
    assert second.id == first.id
    assert second.continues


def test_the_group_is_the_folder_or_the_sweep_that_it_is_a_job_of(tmp_path):
    assert group(tmp_path / "runs/2026-01-01_bench_step") == "2026-01-01_bench_step"
    assert group(tmp_path / "runs/2026-01-01_bench_sweep/3") == "2026-01-01_bench_sweep"


@pytest.mark.slow
def test_whoever_does_not_ask_for_wandb_does_not_import_it(tmp_path):
    program = (
        "import sys; from pathlib import Path; import made_up\n"
        "made_up.measured(Path('here'))\n"
        "assert 'wandb' not in sys.modules\n"
    )
    environment = {"PYTHONPATH": f"{Path('src').resolve()}:{Path(__file__).parent}"}
    answer = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "W&B" not in answer.stdout
