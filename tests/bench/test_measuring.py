"""A measurement goes on where it was stopped, and leaves files, a page and a W&B run."""

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vitrail.bench import run
from vitrail.bench.results import CELLS

from .made_up import config, measured


def lines(path):
    return path.read_text().splitlines()


def test_the_folder_holds_tables_charts_and_a_page(tmp_path, capsys):
    measured(tmp_path)
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert results["bench"] == "made_up"
    assert results["environment"]["packages"]["torch"]
    assert results["config"]["seed"] == 0
    assert results["keys"] == ["backend", "tokens", "dtype"]
    assert results["sentences"] == ["eager & <sdpa> differ"]
    assert results["figures"] == {"made_up/eager/forward_ms": 1.5}
    assert len(results["rows"]) == 9
    with (tmp_path / "results.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert table == [
        {key: "" if value is None else str(value) for key, value in row.items()}
        for row in results["rows"]
    ]
    assert (tmp_path / "charts/speed_vs_tokens.png").is_file()
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for part in ("eager &amp; &lt;sdpa&gt; differ", "3 of 9 rows", "All columns", "seed: 0"):
        assert part in page
    assert str(results["environment"]["cpu"]["name"]) in page
    printed = capsys.readouterr().out
    assert "eager & <sdpa> differ" in printed
    assert f"report: {tmp_path / 'report.html'}" in printed


def test_a_switch_that_is_written_as_a_word_is_the_switch(tmp_path):
    measured(tmp_path, compile="off", deterministic="no", gate="on")
    settings = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["config"]
    assert {key: settings[key] for key in ("compile", "deterministic", "gate")} == {
        "compile": False,
        "deterministic": False,
        "gate": True,
    }


@pytest.mark.slow
def test_a_measurement_that_was_killed_goes_on_with_the_cell_that_it_had_not_finished(tmp_path):
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "import made_up\n"
        "measure = made_up.MadeUp.measure\n"
        "def killed(self, cell):\n"
        "    if cell.key == 'tokens=1024':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return measure(self, cell)\n"
        "made_up.MadeUp.measure = killed\n"
        "made_up.measured(Path('here'), bench={'note': 'note'})\n"
    )
    # By the name that the other process knows the module under, and so the settings are equal.
    own = {"_target_": "made_up.MadeUp", "note": "note"}
    environment = {"PYTHONPATH": f"{Path('src').resolve()}:{Path(__file__).parent}"}
    ask = f"import made_up; from pathlib import Path; made_up.measured(Path('here'), bench={own!r})"
    call = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    killed = subprocess.run([sys.executable, "-c", program], **call)
    assert killed.returncode == -signal.SIGKILL
    folder = tmp_path / "here"
    assert [path.name for path in folder.iterdir()] == [CELLS]
    again = subprocess.run([sys.executable, "-c", ask], **call)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.count("kept: ") == 2
    assert lines(tmp_path / "note") == ["tokens=64", "tokens=197", "tokens=1024"]
    assert len(json.loads((folder / "results.json").read_text())["rows"]) == 9


def test_ctrl_c_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/bench.py", "seed=0"])
    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path, bench={"stop": 1024})
    program = f"{sys.orig_argv[0]} /somewhere/bench.py"
    assert f"stopped; go on with: {program} into={tmp_path}" in capsys.readouterr().out
    assert len(lines(tmp_path / CELLS)) == 1 + 2
    assert not (tmp_path / "report.html").exists()


def test_a_folder_alone_brings_its_own_config_and_the_command_that_made_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bench.py"])
    words = ["seed=3", "bench.tokens=[64,65]"]
    asked = config(seed=3, bench={"tokens": [64, 65], "note": str(tmp_path / "note")})
    (tmp_path / "here").mkdir()
    run(asked, tmp_path / "here", overrides=words)
    other = config(into=str(tmp_path / "here"))
    run(other, tmp_path / "here", overrides=[f"into={tmp_path / 'here'}", "logger=none"])
    assert lines(tmp_path / "note") == ["tokens=64", "tokens=65"], "nothing is measured again"
    results = json.loads((tmp_path / "here/results.json").read_text())
    assert results["config"]["seed"] == 3
    assert results["command"] == "python bench.py seed=3 'bench.tokens=[64,65]'"


def test_a_folder_alone_brings_its_own_logger_too(tmp_path):
    tables = {"tensorboard": {"_target_": "vitrail.tracking.tensorboard.TensorBoardRun"}}
    measured(tmp_path / "one")
    other = config(into=str(tmp_path / "one"), logger=tables)
    run(other, tmp_path / "one", overrides=[f"into={tmp_path / 'one'}"])
    assert not (tmp_path / "one/tensorboard").exists(), "the folder was measured without one"
    run(other, tmp_path / "one", overrides=[f"into={tmp_path / 'one'}", "logger=tensorboard"])
    assert (tmp_path / "one/tensorboard").exists()


def test_a_folder_and_other_settings_are_refused(tmp_path):
    measured(tmp_path)
    with pytest.raises(ValueError, match="was measured with seed=0 and this asks for seed=1"):
        run(config(into=str(tmp_path), seed=1), tmp_path, overrides=["into=x", "seed=1"])


def test_where_it_is_logged_is_no_part_of_what_is_measured(tmp_path):
    note = str(tmp_path / "note")
    measured(tmp_path, bench={"note": note})
    recipe = {"_target_": "vitrail.tracking.wandb_run.WandbRun", "project": "p", "entity": None}
    recipe |= {"mode": "disabled", "name": None, "group": None, "tags": [], "log_model": False}
    measured(tmp_path, bench={"note": note}, logger={"wandb": recipe})
    assert len(lines(tmp_path / "note")) == 3


def test_a_checkpoint_is_refused_since_no_measurement_begins_from_one(tmp_path):
    with pytest.raises(ValueError, match=r"ckpt_path=\S+ has no use here"):
        measured(tmp_path, ckpt_path="a.ckpt")
    assert not list(tmp_path.iterdir())


def test_a_logger_that_cannot_be_made_is_found_before_anything_is_measured(tmp_path):
    note = tmp_path / "note"
    wrong = {"wandb": {"_target_": "vitrail.tracking.wandb_run.WandbRun", "mode": "sometimes"}}
    with pytest.raises(Exception, match="WandbRun"):
        measured(tmp_path, bench={"note": str(note)}, logger=wrong)
    assert not note.exists()


def test_nothing_to_measure_is_said(tmp_path):
    with pytest.raises(ValueError, match="bench=made_up leaves nothing to measure; name more"):
        measured(tmp_path, bench={"backends": []})
