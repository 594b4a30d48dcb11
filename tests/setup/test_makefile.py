"""The Makefile prepares .venv when it must, and only then; a stand-in for Python takes notes."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# `-m venv` puts another stand-in into the environment; installing fails for as long as `offline` is
# there; everything is noted.
PYTHON = """#!/bin/sh
echo "$*" >> "{place}/asked"
case "$*" in
  "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  *"pip install"*) test ! -e "{place}/offline" ;;
esac
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")


@pytest.fixture
def make(tmp_path):
    """Call make in a folder of its own: its exit code, its output, and what Python was asked."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "python"
    python.write_text(PYTHON.format(place=tmp_path))
    python.chmod(0o755)
    asked = tmp_path / "asked"

    def call(*arguments: str) -> tuple[int, str, list[str]]:
        asked.write_text("")
        answer = subprocess.run(
            ["make", f"PYTHON={python}", *arguments],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"]},  # not the flags and ARGS of an outer `make test`
            capture_output=True,
            text=True,
        )
        return answer.returncode, answer.stdout + answer.stderr, asked.read_text().splitlines()

    return call


def install(line: str) -> bool:
    return "pip install" in line and "--constraint constraints.txt" in line


def test_the_first_command_prepares_the_environment_and_the_next_does_not(make):
    code, _, asked = make("train", "ARGS=seed=1 trainer=cpu")
    assert code == 0
    assert asked[0] == "-m venv .venv"
    assert install(asked[1])
    assert asked[2:] == ["train.py seed=1 trainer=cpu"]
    line = "train.py experiment=digits"
    assert make("train") == (0, f".venv/bin/python {line}\n", [line])


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_what_is_installed_is_renewed_when_what_it_should_be_has_changed(make, tmp_path, changed):
    make("setup")
    stamp = (tmp_path / ".venv" / ".ready").stat().st_mtime
    os.utime(tmp_path / changed, (stamp + 10, stamp + 10))
    assert any(install(line) for line in make("test")[2])


def test_an_installation_that_stopped_half_way_is_started_again(make, tmp_path):
    (tmp_path / "offline").touch()
    code, _, asked = make("train")
    assert code != 0
    assert "train.py experiment=digits" not in asked

    (tmp_path / "offline").unlink()
    code, _, asked = make("train")
    assert code == 0
    assert any(install(line) for line in asked)
    assert asked[-1] == "train.py experiment=digits"


def test_a_machine_without_a_fitting_python_is_told_what_to_do(make):
    code, output, _ = make("setup", "PYTHON=", "find_python=true")
    assert code != 0
    assert "error: no Python 3.11 or newer with venv found" in output


def test_the_slow_tests_run_only_when_asked_for(make):
    make("setup")
    assert make("test")[2] == ["-m pytest -n 2 --dist worksteal -m not slow"]
    assert make("test-all")[2] == ["-m pytest -n 2 --dist worksteal"]


def test_help_names_every_command(make):
    code, output, asked = make()
    assert (code, asked) == (0, [])
    commands = {line.split()[1] for line in output.splitlines()}
    assert commands == {
        "help", "setup", "train", "eval", "bench", "test", "test-all", "lint", "gpu-check", "clean"
    }  # fmt: skip
