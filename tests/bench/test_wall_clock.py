"""times.csv counts the seconds of a run, and those of work that a kill undid only once."""

import pytest

from vitrail.bench.wall_clock import FILE, Moment, Times, WallClock, moments


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_row_stands_where_an_epoch_or_a_validation_ended(tmp_path):
    clock = Clock()
    times = Times(tmp_path, resumed_at=None, read=clock)
    clock.now += 2.0
    times.log_metrics({"train/loss": 1.0}, 9)
    times.log_metrics({"val/acc": 0.5, "val/loss": 1.0}, 19)
    clock.now += 1.0
    times.log_metrics({"train/epoch_loss": 0.7}, 19)
    times.log_metrics({"test/acc": 0.5}, 20)
    assert moments(tmp_path) == [Moment(19, 2.0, 0.5), Moment(19, 3.0, None)]


def test_a_run_that_goes_on_goes_on_counting_from_its_checkpoint(tmp_path):
    clock = Clock()
    first = Times(tmp_path, resumed_at=None, read=clock)
    for step in (9, 19, 29):
        clock.now += 10.0
        first.log_metrics({"val/acc": step / 100}, step)
    clock.now += 1000.0
    again = Times(tmp_path, resumed_at=20, read=clock)
    assert [moment.step for moment in moments(tmp_path)] == [9, 19], "29 will be taken again"
    clock.now += 4.0
    again.log_metrics({"val/acc": 0.29}, 29)
    assert moments(tmp_path)[-1] == Moment(29, 24.0, 0.29)


def test_a_new_run_begins_at_zero_and_forgets_an_older_one(tmp_path):
    clock = Clock()
    Times(tmp_path, resumed_at=None, read=clock).log_metrics({"val/acc": 0.1}, 9)
    times = Times(tmp_path, resumed_at=None, read=clock)
    assert moments(tmp_path) == []
    times.log_metrics({"val/acc": 0.2}, 9)
    assert moments(tmp_path) == [Moment(9, 0.0, 0.2)]


def test_half_a_line_that_a_kill_left_is_no_moment(tmp_path):
    (tmp_path / FILE).write_text("step,seconds,val_acc\n9,1.5,0.25\n19,3.")
    assert moments(tmp_path) == [Moment(9, 1.5, 0.25)]
    assert moments(tmp_path / "elsewhere") == []


def test_the_recipe_opens_it_in_the_folder_of_the_run(tmp_path):
    WallClock().open(tmp_path, run_id=None, resumed_at=None)
    assert (tmp_path / FILE).read_text() == "step,seconds,val_acc\n"


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        Times(tmp_path / "nowhere", resumed_at=None)
