import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import wandb
from PIL import Image

from vitrail.tracking.loggers import open_loggers
from vitrail.tracking.wandb_run import WandbRun

OFFLINE = {
    **dict.fromkeys(("entity", "name", "group")),
    "project": "vitrail",
    "mode": "offline",
    "tags": [],
    "log_model": False,
}
CONFIG = {"seed": 1, "model": {"dim": 32, "pattern": None, "plan": ["window", "full"]}}


@pytest.fixture(autouse=True)
def untouched_settings(monkeypatch, tmp_path_factory):
    """No key and no settings at home, and neither a mode nor silence from the environment."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)


def opened(folder, *, run_id=None, resumed_at=None, config=CONFIG, **changes):
    factory = WandbRun(**{**OFFLINE, **changes})
    folder.mkdir(exist_ok=True)
    return open_loggers(
        {"wandb": factory}, folder, config=config, run_id=run_id, resumed_at=resumed_at
    )


def log(loggers, steps):
    for step in steps:
        for logger in loggers:
            logger.log_metrics({"loss": step / 10}, step=step)


def test_an_offline_run_holds_config_curves_summary_picture_and_tables(tmp_path, offline_runs):
    picture = tmp_path / "confusion.png"
    Image.new("RGB", (4, 4)).save(picture)
    with opened(tmp_path, name="first", tags=["a"]) as loggers:
        log(loggers, range(0, 30, 10))
        loggers.show_summary({"test/acc": 0.975, "device": "cpu"})
        loggers.show_picture("confusion", picture)
        loggers.show_table("receipt", [{"layer": "a", "why": None}, {"layer": "b", "why": "named"}])

    [run] = offline_runs(tmp_path)
    assert (run.id, run.project, run.exit_code) == (loggers.run_id, "vitrail", 0)
    assert {key: run.config[key] for key in CONFIG} == CONFIG
    assert run.steps("loss") == [0, 10, 20]
    assert (run.summary["test/acc"], run.summary["device"]) == (0.975, "cpu")
    files = next(tmp_path.glob("wandb/offline-run-*")) / "files"
    [table] = [row["receipt.path"] for row in run.history if "receipt.path" in row]
    assert json.loads((files / table).read_text())["data"] == [["a", None], ["b", "named"]]
    [images] = [row["confusion.filenames"] for row in run.history if "confusion.filenames" in row]
    assert (files / images[0]).exists()


def test_everything_that_is_needed_to_sync_lies_in_the_folder(tmp_path):
    with opened(tmp_path) as loggers:
        loggers.show_table("receipt", [{"layer": "a"}])
    assert list(tmp_path.rglob("staging/*"))
    assert not list(Path.home().rglob("staging"))
    assert "WANDB_DATA_DIR" not in os.environ


def test_a_run_that_fails_is_closed_as_failed(tmp_path, offline_runs):
    with pytest.raises(KeyboardInterrupt), opened(tmp_path):
        raise KeyboardInterrupt
    assert [run.exit_code for run in offline_runs(tmp_path)] == [130]


def test_a_run_that_someone_left_open_is_not_joined(tmp_path, offline_runs):
    (tmp_path / "other").mkdir()
    other = wandb.init(mode="offline", dir=tmp_path / "other", settings={"silent": True})
    with opened(tmp_path / "ours") as loggers:
        log(loggers, [0])
    other.finish()
    assert [run.id for run in offline_runs(tmp_path / "ours")] == [loggers.run_id] != [other.id]


def test_a_resumed_run_keeps_its_id_and_every_later_step(tmp_path, offline_runs, capfd):
    with opened(tmp_path) as loggers:
        log(loggers, range(31))
    with opened(tmp_path, run_id=loggers.run_id, resumed_at=21) as resumed:
        log(resumed, range(21, 41))
        words = resumed.sync_command.split()

    first, second = offline_runs(tmp_path)
    assert first.id == second.id == loggers.run_id == resumed.run_id
    assert second.continues
    assert second.steps("loss") == list(range(21, 41))
    assert "step" not in capfd.readouterr().err
    assert words == ["wandb", "sync", f"{tmp_path}/wandb"]
    told = subprocess.run(
        [sys.executable, "-m", *words, "--dry-run"], capture_output=True, text=True, check=True
    )
    assert "Would sync 2 run(s)" in told.stderr


def test_the_environment_rules_over_the_config_also_in_older_words(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with opened(tmp_path, mode="online", run_id="earlier") as loggers:
        log(loggers, [0])
    assert [logger.name for logger in loggers] == ["csv"]
    assert (loggers.run_id, loggers.sync_command) == ("earlier", None)
    monkeypatch.setenv("WANDB_MODE", "dryrun")
    with opened(tmp_path, mode="disabled") as loggers:
        assert loggers.sync_command


def test_an_unknown_mode_is_refused_with_those_that_exist(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="mode=ofline does not exist; there are offline, online"):
        WandbRun(**{**OFFLINE, "mode": "ofline"})
    monkeypatch.setenv("WANDB_MODE", "of")
    with pytest.raises(ValueError, match="WANDB_MODE=of does not exist"), opened(tmp_path):
        pass


def test_names_that_hydra_reads_as_numbers_are_names(tmp_path, offline_runs):
    with opened(tmp_path, project=2024, name=7, group=1, tags=[3]):
        pass
    [run] = offline_runs(tmp_path)
    assert (run.project, run.name) == ("2024", "7")


def test_uploading_checkpoints_offline_warns_at_the_start(tmp_path):
    with (
        pytest.warns(UserWarning, match="log_model=true uploads nothing in offline mode"),
        opened(tmp_path, log_model=True),
    ):
        pass


NO_ANSWER = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "a" * 40}


@pytest.mark.parametrize(
    "settings, reason",
    [({}, "no API key is configured"), pytest.param(NO_ANSWER, ".*", marks=pytest.mark.slow)],
    ids=["key", "answer"],
)
def test_online_without_a_key_or_an_answer_fails_with_a_hint(
    tmp_path, monkeypatch, settings, reason
):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    hint = "run `wandb login`, set WANDB_API_KEY, or choose logger.wandb.mode=offline$"
    with (
        pytest.raises(ValueError, match=f"^logger.wandb.mode=online failed: {reason}; {hint}"),
        opened(tmp_path, mode="online"),
    ):
        pass
    assert not (tmp_path / "wandb").exists()


@pytest.mark.slow
def test_an_offline_run_needs_no_home(tmp_path, offline_runs, monkeypatch):
    program = (
        "from pathlib import Path\n"
        "from vitrail.tracking.wandb_run import WandbRun\n"
        f"run = WandbRun(**{OFFLINE}).open(Path(), run_id=None, resumed_at=None)\n"
        "run.log_metrics({'loss': 0.5}, step=0)\n"
        "run.show_table('receipt', [{'layer': 'a'}])\n"
        "run.close(0)"
    )
    monkeypatch.setenv("HOME", "")
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    [part] = offline_runs(tmp_path)
    assert (part.steps("loss"), part.exit_code) == ([0], 0)
