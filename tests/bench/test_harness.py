"""A measurement goes on where it was stopped, and leaves rows, a table, a page and a W&B run."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from vitrail.attention.selection.stopwatch import Times
from vitrail.bench import harness, run
from vitrail.bench.harness import TimedBench
from vitrail.bench.results import RESULTS, read
from vitrail.errors import UserError

from .made_up import config, measured

WANDB = {
    "_target_": "vitrail.tracking.wandb_run.WandbRun", "project": "p", "entity": None,
    "mode": "offline", "name": None, "group": None, "tags": [], "log_model": False,
}  # fmt: skip


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_the_folder_holds_rows_a_table_charts_and_a_page(tmp_path, capsys):
    measured(tmp_path)
    subject, rows = read(tmp_path)
    assert subject.bench == "madeup"
    assert subject.environment["packages"]["torch"]
    assert (subject.settings["seed"], subject.keys) == (0, ["backend", "tokens", "dtype"])
    table = pd.read_csv(tmp_path / "results.csv", keep_default_na=False)
    assert len(table) == len(rows) == 9
    assert table["backend"].tolist() == [row["backend"] for row in rows]
    assert "rounds_ms" not in table, "the rounds are in results.jsonl alone"
    assert set(table["refused"]) == {"", "cannot run <b>here</b>"}
    assert (tmp_path / "charts/speed_tokens.png").is_file()
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for part in ("How &lt;often&gt;", "cannot run &lt;b&gt;here&lt;/b&gt;", "seed: 0", "größer"):
        assert part in page
    printed = capsys.readouterr().out
    assert f"report: {tmp_path / 'report.html'}" in printed
    assert "none: cannot run <b>here</b>" in printed, "a reason is a line below its cell's table"
    assert "64 tokens, [bold]float32[/]" in printed, "a title may look like markup"


def test_a_switch_that_is_written_as_a_word_is_the_switch(tmp_path):
    measured(tmp_path, compile="off", deterministic="no", gate="on")
    settings = read(tmp_path)[0].settings
    assert [settings[key] for key in ("compile", "deterministic", "gate")] == [False, False, True]


@pytest.mark.slow
def test_a_measurement_that_was_killed_goes_on_with_the_cell_that_it_had_not_finished(tmp_path):
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "import made_up\n"
        "measure = made_up.MadeUpBench.measure\n"
        "def killed(self, cell):\n"
        "    if cell.startswith('1024'):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return measure(self, cell)\n"
        "made_up.MadeUpBench.measure = killed\n"
        "made_up.measured(Path('here'), bench={'note': 'note'})\n"
    )
    # By the name that the other process knows the module under, and so the settings are equal.
    own = {"_target_": "made_up.MadeUpBench", "note": "note"}
    environment = {"PYTHONPATH": f"{Path('src').resolve()}:{Path(__file__).parent}"}
    ask = f"import made_up; from pathlib import Path; made_up.measured(Path('here'), bench={own!r})"
    call = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    killed = subprocess.run([sys.executable, "-c", program], **call)
    assert killed.returncode == -signal.SIGKILL
    folder = tmp_path / "here"
    assert [path.name for path in folder.iterdir()] == [RESULTS]
    again = subprocess.run(
        [sys.executable, "-c", f"import sys; {ask}; print('wandb' in sys.modules)"], **call
    )
    assert (again.returncode, again.stderr) == (0, "")
    assert "2 of 3; now: 1024 tokens" in again.stdout
    assert again.stdout.endswith("False\n"), "whoever does not ask for W&B does not import it"
    assert lines(tmp_path / "note") == ["64", "197", "1024"]
    assert len(read(folder)[1]) == 9


def test_ctrl_c_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/bench.py", "seed=0"])
    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path, bench={"stop": 1024})
    program = f"{sys.orig_argv[0]} /somewhere/bench.py"
    assert f"stopped; go on with: {program} into={tmp_path}" in capsys.readouterr().out
    assert len(lines(tmp_path / RESULTS)) == 1 + 2
    assert not (tmp_path / "report.html").exists()


def test_a_folder_alone_brings_its_own_config_and_the_command_that_made_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bench.py"])
    asked = config(seed=3, bench={"tokens": [64, 65], "note": str(tmp_path / "note")})
    here = tmp_path / "here"
    here.mkdir()
    run(asked, here, overrides=["seed=3", "bench.tokens=[64,65]"])
    run(config(into=str(here)), here, overrides=[f"into={here}", "logger=none"])
    assert lines(tmp_path / "note") == ["64", "65"], "nothing is measured again"
    subject, _ = read(here)
    assert subject.settings["seed"] == 3
    assert subject.command == "python bench.py seed=3 'bench.tokens=[64,65]'"


def test_a_folder_alone_brings_its_own_logger_too(tmp_path):
    tables = {"tensorboard": {"_target_": "vitrail.tracking.tensorboard.TensorBoardRun"}}
    folder = measured(tmp_path / "one")
    other = config(into=str(folder), logger=tables)
    run(other, folder, overrides=[f"into={folder}"])
    assert not (folder / "tensorboard").exists(), "the folder was measured without one"
    run(other, folder, overrides=[f"into={folder}", "logger=tensorboard"])
    assert (folder / "tensorboard").exists()


def test_a_folder_and_other_settings_are_refused(tmp_path):
    measured(tmp_path)
    with pytest.raises(UserError, match="was measured with seed=0, got 1; use a new folder"):
        run(config(into=str(tmp_path), seed=1), tmp_path, overrides=["into=x", "seed=1"])


def test_where_it_is_logged_is_no_part_of_what_is_measured(tmp_path):
    note = str(tmp_path / "note")
    measured(tmp_path, bench={"note": note})
    measured(tmp_path, bench={"note": note}, logger={"wandb": WANDB | {"mode": "disabled"}})
    assert len(lines(tmp_path / "note")) == 3


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"ckpt_path": "a.ckpt"}, "ckpt_path=a.ckpt is not used by bench.py"),
        ({"tokens": []}, "bench=madeup leaves nothing to measure; name more"),
        ({"runs": "a"}, "runs= was renamed to compare=; write compare=a"),
        ({"logger": {"wandb": WANDB | {"mode": "sometimes"}}}, "mode=sometimes does not exist"),
    ],
    ids=str,
)
def test_what_cannot_be_measured_is_refused_before_anything_is(tmp_path, changes, message):
    bench = {"note": str(tmp_path / "note")} | {k: changes[k] for k in changes if k == "tokens"}
    others = {key: value for key, value in changes.items() if key != "tokens"}
    with pytest.raises(Exception, match=message):
        measured(tmp_path, bench=bench, **others)
    assert not (tmp_path / "note").exists()


def test_the_w_b_run_has_all_rows_charts_and_the_group_of_its_folder(
    tmp_path, offline_runs, capsys, monkeypatch
):
    monkeypatch.setattr(harness, "MOST_ROWS", 5)
    (tmp_path / "a folder").mkdir()
    folder = measured(tmp_path / "a folder" / "3", logger={"wandb": WANDB})
    [logged] = offline_runs(folder)
    assert (logged.exit_code, logged.name, logged.group) == (0, "madeup", "a folder")
    assert logged.config["seed"] == 0
    assert logged.summary["eager/64/forward_ms"] == 6.0
    tables = sorted(folder.glob("wandb/offline-run-*/files/media/table/*.table.json"))
    contents = [json.loads(path.read_text(encoding="utf-8"))["data"] for path in tables]
    assert sorted(map(len, contents)) == [4, 5], "W&B drops rows beyond a table's most"
    assert list(folder.glob("wandb/offline-run-*/files/media/images/charts/speed*.png"))
    assert "W&B run: wandb sync" in capsys.readouterr().out
    measured(folder, logger={"wandb": WANDB})
    _, again = offline_runs(folder)
    assert again.id == logged.id, "a measurement that is shown again is the same run"


@pytest.fixture
def timed():
    def build(rounds=3, seconds=1.0, baseline=None):
        knobs = {"config": config(), "folder": Path(), "rounds": rounds, "seconds": seconds}
        return TimedBench(**knobs, baseline=baseline)

    return build


def test_times_that_took_turns_are_compared_with_the_fastest_or_a_named_one(timed):
    times = {"slow": Times((2.0, 2.2, 1.8)), "fast": Times((1.0, 1.1, 0.9))}
    rows = timed().rows_of(times, "time_ms")
    assert [*rows] == ["fast", "slow"]
    assert "verdict" not in rows["fast"]
    assert (rows["slow"]["baseline"], rows["slow"]["verdict"]) == ("fast", "slower")
    assert rows["slow"]["time_ratio"] == pytest.approx(2.0)
    rows = timed(baseline="slow").rows_of(times, "time_ms")
    assert (rows["fast"]["baseline"], rows["fast"]["verdict"]) == ("slow", "faster")
    assert timed(baseline="refused").rows_of(times, "time_ms")["slow"]["baseline"] == "fast"
    assert timed().rows_of({}, "time_ms") == {}


def test_columns_of_a_time_are_of_a_step_and_speed_s_ends_are_turned_round(timed):
    times = Times(tuple(float(second) for second in range(1, 12)))
    row = timed().rows_of({"a": times}, "step_ms", steps=2, images=12)["a"]
    assert (row["step_ms"], row["step_ms_p10"], row["step_ms_p90"]) == (3000, 1000, 5000)
    assert (row["rounds"], len(row["rounds_ms"])) == (11, 11)
    speed = [row["images_per_second" + end] for end in ("", "_p10", "_p90")]
    assert speed == pytest.approx([2.0, 1.2, 6.0])


@pytest.mark.parametrize("rounds, seconds", [(2, 1.0), (3, 0.0)])
def test_too_few_rounds_or_no_time_are_refused(timed, rounds, seconds):
    with pytest.raises(UserError, match=r"bench\.(rounds must be >= 3|seconds must be > 0), got"):
        timed(rounds, seconds)
