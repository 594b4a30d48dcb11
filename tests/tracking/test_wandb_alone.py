"""W&B as it meets a person who never set it up: no key, nothing at home, no terminal."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
PROGRAM = """
import sys
from pathlib import Path
from vitrail.tracking.loggers import open_loggers
from vitrail.tracking.wandb_run import WandbRun

mode, folder = sys.argv[1:]
factory = WandbRun(
    project="vitrail", entity=None, mode=mode, name=None, group=None, tags=[], log_model=False
)
try:
    with open_loggers(
        {"wandb": factory}, Path(folder), config={"seed": 1}, run_id=None, resumed_at=None
    ) as loggers:
        for logger in loggers:
            logger.log_metrics({"loss": 0.5}, step=0)
        loggers.show_table("receipt", [{"layer": "a"}])
        print(loggers.sync_command)
except ValueError as error:
    sys.exit(str(error))
"""


def alone(mode: str, folder: Path, home: str) -> subprocess.CompletedProcess[str]:
    """Log one row in a process that has nothing but a folder and a home."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, mode, str(folder)],
        env={"PYTHONPATH": str(SOURCE), "HOME": home, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("home", ["empty", pytest.param("", marks=pytest.mark.slow)])
def test_an_offline_run_needs_no_key_no_home_and_no_answer(tmp_path, offline_runs, home):
    (tmp_path / "empty").mkdir()
    run = alone("offline", tmp_path, home and str(tmp_path / home))
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == f"wandb sync {tmp_path}/wandb"
    [part] = offline_runs(tmp_path)
    assert (part.steps("loss"), part.exit_code) == ([0], 0)


def test_an_online_run_without_a_key_fails_at_once_with_a_hint(tmp_path):
    (tmp_path / "home").mkdir()
    began = time.monotonic()
    run = alone("online", tmp_path, str(tmp_path / "home"))
    assert time.monotonic() - began < 30
    assert run.returncode == 1
    assert run.stderr.strip() == (
        "logger.wandb.mode=online failed: no API key is configured; run `wandb login`, "
        "set WANDB_API_KEY, or choose logger.wandb.mode=offline"
    )
    assert not (tmp_path / "wandb").exists()
