"""What an installed vitrail needs is declared, pinned and found."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from vitrail.startup import configs

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"]
    needs = [*PROJECT["dependencies"], *extras["tensorboard"], *extras["dev"]]
    return [Requirement(need) for need in needs if not need.startswith("vitrail[")]


def test_every_requirement_is_pinned_within_its_range_and_nothing_else_is():
    pinned = pins()
    assert {need.name for need in requirements()} == pinned.keys()
    for need in requirements():
        assert pinned[need.name] in need.specifier, need


def test_a_checkout_uses_the_configs_that_people_edit():
    assert configs() == ROOT / "configs"


@pytest.mark.parametrize("command", ["bench", "eval", "train"])
def test_an_installed_command_finds_its_configs_from_any_folder(command, tmp_path):
    installed = tmp_path / "site-packages"
    shutil.copytree(ROOT / "src" / "vitrail", installed / "vitrail")
    shutil.copytree(ROOT / "configs", installed / "vitrail" / "configs")
    module, function = PROJECT["scripts"][f"vitrail-{command}"].split(":")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    answer = subprocess.run(
        [sys.executable, "-c", f"from {module} import {function}; {function}()", "--help"],
        cwd=elsewhere,
        env={"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
    )
    assert (answer.returncode, answer.stderr) == (0, "")
