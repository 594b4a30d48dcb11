from types import SimpleNamespace

import pytest
from pytorch_lightning.utilities import rank_zero_only
from pytorch_lightning.utilities.exceptions import SIGTERMException

from vitrail.tracking.loggers import Loggers, RunLogger, open_loggers


class Notes(RunLogger):
    """A logger that writes down what it is told, and the factory of itself."""

    name = "notes"
    version = None

    def __init__(self):
        super().__init__()
        self.told = []

    def open(self, folder, *, run_id, resumed_at):
        self.told.append(("open", folder.name, run_id, resumed_at))
        return self

    def log_metrics(self, metrics, step):
        self.told.append(("metrics", metrics, step))

    def log_hyperparams(self, params):
        self.told.append(("config", params))

    def show_summary(self, values):
        self.told.append(("summary", values))

    def close(self, exit_code):
        self.told.append(("close", exit_code))


def opened(factories, folder, run_id=None, resumed_at=None):
    return open_loggers(factories, folder, config={"seed": 1}, run_id=run_id, resumed_at=resumed_at)


def test_loggers_are_opened_for_the_run_told_its_config_and_closed(tmp_path):
    notes = Notes()
    with opened({"notes": notes}, tmp_path, run_id="abc", resumed_at=20) as loggers:
        loggers.show_summary({"test/acc": 1.0})
    assert notes.told == [
        ("open", tmp_path.name, "abc", 20),
        ("config", {"seed": 1}),
        ("summary", {"test/acc": 1.0}),
        ("close", 0),
    ]


def test_what_was_opened_is_closed_as_failed_when_the_next_factory_cannot_work(tmp_path):
    notes, broken = Notes(), None
    with pytest.raises(AttributeError), opened({"notes": notes, "broken": broken}, tmp_path):
        pass
    assert notes.told[-1] == ("close", 1)


@pytest.mark.parametrize(
    "end, exit_code",
    [
        (RuntimeError("out of memory"), 1),
        (KeyboardInterrupt(), 130),
        (SIGTERMException(), 143),
        (SystemExit(143), 143),
        (SystemExit("bad input"), 1),
        (SystemExit(None), 0),
    ],
    ids=repr,
)
def test_a_run_is_closed_with_the_exit_code_of_its_end(tmp_path, end, exit_code):
    notes = Notes()
    with pytest.raises(type(end)), opened({"notes": notes}, tmp_path):
        raise end
    assert notes.told[-1] == ("close", exit_code)


def test_metrics_go_to_the_file_whatever_else_is_chosen(tmp_path, fit):
    with opened({}, tmp_path) as loggers:
        fit(loggers, epochs=1)
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 12
    switched_off = SimpleNamespace(open=lambda *_, **__: None)
    with opened({"off": switched_off}, tmp_path) as loggers:
        assert [logger.name for logger in loggers] == ["csv"]


def test_other_processes_than_the_first_open_no_logger_and_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    notes = Notes()
    with opened({"notes": notes}, tmp_path, run_id="abc") as loggers:
        for logger in loggers:
            logger.log_metrics({"loss": 1.0}, step=0)
        loggers.show_summary({"test/acc": 1.0})
        assert loggers.run_id == "abc"
    assert notes.told == []
    assert not list(tmp_path.iterdir())


def test_what_is_not_shown_by_a_logger_is_no_error(tmp_path):
    with opened({}, tmp_path) as loggers:
        loggers.show_picture("confusion", tmp_path / "confusion.png")
        loggers.show_table("receipt", [{"layer": "a"}])
    assert Loggers([], run_id=None).sync_command is None
