"""What importing costs: a fresh interpreter tells, because this one has imported everything."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"


def imported_by(statement: str) -> set[str]:
    """The top-level packages that `statement` loads in a fresh interpreter."""
    program = (
        "import json, sys\n"
        "before = {*sys.modules}\n"
        f"{statement}\n"
        "print(json.dumps([*({*sys.modules} - before)]))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(SOURCE)},
        check=True,
        capture_output=True,
        text=True,
    )
    return {name.split(".")[0] for name in json.loads(answer.stdout)}


HEAVY = {"pytorch_lightning", "timm", "wandb"}


@pytest.mark.parametrize(
    "module, needed, spared",
    [
        ("vitrail.cli", "hydra", {"torch", *HEAVY}),
        ("vitrail.attention", "torch", {"flash_attn", "hydra", *HEAVY}),
    ],
)
def test_a_room_imports_what_it_needs_and_spares_what_is_slow(module, needed, spared):
    loaded = imported_by(f"import {module}")
    assert needed in loaded
    assert not loaded & spared


def test_importing_vitrail_imports_nothing_else():
    assert imported_by("import vitrail") == {"vitrail"}


@pytest.mark.parametrize("command", ["bench.py", "eval.py", "train.py"])
def test_help_answers_from_any_folder_without_torch(command, tmp_path):
    program = (
        "import runpy, sys\n"
        f"sys.argv = [{str(ROOT / command)!r}, '--help']\n"
        "try:\n"
        "    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "finally:\n"
        "    assert not {'torch', 'pandas', 'matplotlib'} & sys.modules.keys()"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={}, capture_output=True, text=True
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "Configuration groups" in answer.stdout
    assert not list(tmp_path.iterdir()), "asking for help leaves nothing behind"


def test_every_package_that_the_source_imports_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [need for needs in project["optional-dependencies"].values() for need in needs]
    declared = {re.split(r"[\[<>=]", need)[0] for need in [*project["dependencies"], *extras]}
    owners = packages_distributions()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            for top in {name.split(".")[0] for name in names} - sys.stdlib_module_names:
                owner = {name.lower() for name in owners.get(top, [top.replace("_", "-")])}
                assert owner & declared, f"{path} imports {top}, which pyproject.toml does not name"
