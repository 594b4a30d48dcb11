import csv

import pytest
from pytorch_lightning.utilities import rank_zero_only

from vitrail.errors import UserError
from vitrail.tracking.loggers import MetricsCSV
from vitrail.tracking.metrics_csv import read_metrics


def rows(folder) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def log(folder, steps, *, resumed_at=None, metric="loss"):
    logger = MetricsCSV(folder, resumed_at=resumed_at)
    for step in steps:
        logger.log_metrics({metric: step / 10}, step=step)


def test_every_call_is_a_row_and_a_new_metric_a_new_column(tmp_path):
    logger = MetricsCSV(tmp_path, resumed_at=None)
    logger.log_metrics({"epoch": 0, "loss": 0.5}, step=0)
    logger.log_metrics({"epoch": 0, "acc": 0.25}, step=0)
    logger.log_metrics({"loss": 0.125}, step=1)
    assert (tmp_path / "metrics.csv").read_text() == (
        "step,epoch,loss,acc\n0,0,0.5,\n0,0,,0.25\n1,,0.125,\n"
    )


@pytest.mark.parametrize(
    "before, resumed_at, then, kept",
    [(30, 20, range(20, 25), range(25)), (0, 7, [7], [7]), (5, None, [0], [0])],
    ids=["steps are taken again", "there was no file", "a new run in an old folder"],
)
def test_a_resumed_run_drops_the_steps_that_are_taken_again(
    tmp_path, before, resumed_at, then, kept
):
    log(tmp_path, range(before))
    log(tmp_path, then, resumed_at=resumed_at)
    assert [int(row["step"]) for row in rows(tmp_path)] == [*kept]


def test_a_resumed_run_may_have_other_metrics(tmp_path):
    log(tmp_path, range(3))
    log(tmp_path, range(2, 4), resumed_at=2, metric="error")
    text = (tmp_path / "metrics.csv").read_text()
    assert text == "step,loss,error\n0,0.0,\n1,0.1,\n2,,0.2\n3,,0.3\n"


def test_half_a_line_of_a_killed_run_is_dropped(tmp_path):
    log(tmp_path, range(3))
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("1")
    log(tmp_path, [3], resumed_at=3)
    assert [row["step"] for row in rows(tmp_path)] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("cells", ["abc,0.5", "3,abc", "3,0.5,7"])
def test_a_file_that_holds_something_else_is_named_with_the_line(tmp_path, cells):
    path = tmp_path / "metrics.csv"
    path.write_text(f"step,loss\n0,nan\n1,\n{cells}\n")
    for read in (lambda: read_metrics(path), lambda: log(tmp_path, [4], resumed_at=4)):
        with pytest.raises(UserError, match=r"/metrics.csv: \S+ in line 4 must be a number, got"):
            read()


def test_the_file_is_read_as_numbers_with_nothing_where_a_cell_is_empty(tmp_path):
    assert read_metrics(tmp_path / "metrics.csv").empty
    log(tmp_path, range(2))
    log(tmp_path, [2], resumed_at=2, metric="error")
    table = read_metrics(tmp_path / "metrics.csv").fillna(-1)
    assert table.values.tolist() == [[0, 0, -1], [1, 0.1, -1], [2, -1, 0.2]]


def test_only_the_first_process_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    log(tmp_path, range(3))
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_an_error_with_the_path_and_keeps_the_rows(tmp_path, full_disk):
    logger = MetricsCSV(tmp_path, resumed_at=None)
    logger.log_metrics({"loss": 0.5}, step=0)
    with full_disk(512), pytest.raises(OSError, match=r"too large: .*/metrics.csv"):
        logger.log_metrics({"loss": 0.5, "x" * 1000: 0.5}, step=1)
    assert [row["step"] for row in rows(tmp_path)] == ["0"]


def test_a_folder_that_is_gone_is_an_error_with_the_path(tmp_path):
    with pytest.raises(OSError, match="gone"):
        log(tmp_path / "gone", [0])
