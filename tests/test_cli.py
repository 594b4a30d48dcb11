"""The command line, on small configs of its own and a task that builds its two parts."""

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.utilities.exceptions import SIGTERMException

from vitrail.cli import launch
from vitrail.run.plan import build
from vitrail.startup import new_folder

FILES = {
    "configs/train.yaml": """
        defaults:
          - _self_
          - data: cifar10
          - model: tiny
          - experiment: null
          - override hydra/job_logging: none
          - override hydra/hydra_logging: none
        seed: 0
        backend: sdpa
        ckpt_path: null
        loss: {smoothing: 0.1}
        hydra:
          run: {dir: '${run_folder:${ckpt_path},runs/${now:%Y-%m-%d_%H-%M-%S}}'}
          sweep:
            dir: ${run_folder:null,runs/${now:%Y-%m-%d_%H-%M-%S}}
            subdir: ${hydra.job.num}
        """,
    "configs/eval.yaml": """
        defaults:
          - _self_
          - override hydra/job_logging: none
          - override hydra/hydra_logging: none
        ckpt_path: ???
        split: test
        hydra: {run: {dir: '${eval_folder:${ckpt_path},${split}}'}}
        """,
    "configs/data/cifar10.yaml": "{_target_: parts.Data, root: data, options: {}}",
    "configs/data/cifar100.yaml": "{_target_: parts.Data, root: data, options: {}}",
    "configs/model/tiny.yaml": "{_target_: parts.Model, dim: 48, heads: 3, dropout: 0.0}",
    "configs/model/open.yaml": "_target_: parts.Model\ndim: ???\nheads: 3\ndropout: 0.0",
    "configs/model/library.yaml": "{_target_: fractions.Fraction, numerator: one}",
    "configs/model/bug.yaml": "{_target_: parts.Buggy}",
    "configs/experiment/long.yaml": "# @package _global_\nseed: 7",
    "parts.py": """
        from vitrail.errors import UserError

        class Model:
            def __init__(self, *, dim: int, heads: int, dropout: float, registers: int = 0):
                if dim % heads:
                    raise UserError(f"dim={dim} does not split over heads={heads}; use 2 or 4")

        class Data:
            def __init__(self, *, root, options: dict):
                if root == "missing":
                    raise FileNotFoundError(2, "No such file or directory", root)

        class Buggy:
            def __init__(self):
                raise RuntimeError("a thing that must not happen")
        """,
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with configs and parts, which is where the command is started."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(line.removeprefix(" " * 8) for line in text.strip().split("\n")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("parts", None)


@pytest.fixture
def command(place, monkeypatch, capsys):
    """Call the command with a line of overrides: its exit code, what it printed, what it ran.

    then: what a job does when it has noted how it was called and has built its parts.
    """

    def call(line: str, *, config_name="train", then=lambda: None) -> SimpleNamespace:
        jobs: list[SimpleNamespace] = []

        def task(config: DictConfig, folder: Path) -> None:
            hydra = HydraConfig.get()
            jobs.append(
                SimpleNamespace(
                    config=config,
                    folder=folder.relative_to(place),
                    argv=sys.argv[1:],
                    restarted_in=hydra.run.dir,
                    choices=dict(hydra.runtime.choices),
                    full_error=os.environ["HYDRA_FULL_ERROR"],
                    name=hydra.job.name,
                )
            )
            folder.joinpath("result").touch()
            for part in ("model", "data"):
                if part in config:
                    build(config[part])
            then()

        monkeypatch.setattr(sys, "argv", ["train.py", *line.split()])
        code = 0
        try:
            launch(lambda: task, config_name, place / "configs")
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return SimpleNamespace(code=code, out=captured.out, err=captured.err, jobs=jobs)

    return call


def test_a_run_gets_the_config_and_a_folder_of_its_own(command, place):
    first, second = command("seed=3"), command("seed=4")
    assert (first.code, first.err) == (0, "")
    [job], [other] = first.jobs, second.jobs
    assert (job.name, job.config.seed, job.folder.parent) == ("train", 3, Path("runs"))
    assert job.folder != other.folder, "also when both start in one second"
    assert (place / job.folder / ".hydra/overrides.yaml").read_text() == "- seed=3\n"
    assert job.full_error == "0", "processes that a task starts inherit the person's own wish"
    assert sorted(path.name for path in place.iterdir() if path.is_dir()) == ["configs", "runs"]


@pytest.mark.usefixtures("place")
def test_two_runs_that_start_at_the_same_time_get_two_folders():
    with ThreadPoolExecutor(3) as pool:
        folders = set(pool.map(new_folder, ["runs/now"] * 3))
    assert folders == {"runs/now", "runs/now-2", "runs/now-3"}


REFUSED = {
    "seeed=1": "unknown key seeed; did you mean seed?",
    "modle=tiny": "unknown key modle; did you mean model?",
    "experimnt=long": "unknown key experimnt; did you mean experiment?",
    "model.dorpout=0.1": "unknown key model.dorpout; did you mean model.dropout?",
    "smoothing=0.1": "unknown key smoothing; did you mean loss.smoothing?",
    "model.width=8": "unknown key model.width; model has dim, dropout, heads",
    "seed.x=1": "unknown key seed.x; seed has no keys of its own",
    "model.registers=4": "the config does not list model.registers, but its constructor takes it: "
    "write +model.registers=…",
    "data=cifar1": "data=cifar1 does not exist; did you mean cifar10 or cifar100? "
    "data is one of cifar10, cifar100",
    "data=mnist": "data=mnist does not exist; data is one of cifar10, cifar100",
    "+foo=1": "unknown key foo; the config has backend, ckpt_path, data, loss, model, seed",
    "++sede=1": "unknown key sede; did you mean seed?",
    "+loss.smothing=1": "unknown key loss.smothing; did you mean loss.smoothing?",
    "+loss={smothing:1}": "unknown key loss.smothing; did you mean loss.smoothing?",
    "+model.dorpout=0.1": "unknown key model.dorpout; did you mean model.dropout?",
    "+model.width=8": "unknown key model.width; model has dim, dropout, heads, registers",
    "model=open": "model.dim has no value; write model.dim=…",
    "model.dim=wide": "model.dim must be int, got wide (str)",
    "model.heads=[1,2]": "model.heads must be int, got [1, 2] (list)",
    "model.dropout=${nowhere}": "model.dropout: Interpolation key 'nowhere' not found",
    "model._target_=p.X": "_target_=p.X names nothing that can be called; check its spelling",
    "ckpt_path=a=b": "ckpt_path=a=b cannot be read (mismatched input '=' expecting <EOF>); "
    "quote a value with such characters: 'ckpt_path=\"a=b\"'",
    "seed": "seed is not an override; write key=value",
    "~loss.alpha": "Could not delete from config. 'loss.alpha' does not exist.",
    "ckpt_path=runs/x.ckpt": "ckpt_path=runs/x.ckpt is not a file; there is no checkpoint in runs",
}


@pytest.mark.parametrize("line, message", REFUSED.items(), ids=REFUSED)
def test_a_command_that_cannot_be_meant_is_refused_in_one_line(command, place, line, message):
    answer = command(line)
    assert answer.err == f"error: {message}\n"
    assert (answer.code, answer.out, answer.jobs) == (1, "", [])
    assert not list(place.glob("runs/*")), "it leaves no folder behind"


def test_a_sweep_without_m_is_refused_with_the_ways_to_say_it(command):
    answer = command("seed=1,2")
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert answer.err.startswith("error: Ambiguous value for argument 'seed=1,2'")
    assert "--multirun" in answer.err


@pytest.mark.parametrize(
    "line, message",
    {
        "model.dim=50": "dim=50 does not split over heads=3; use 2 or 4",
        "data.root=missing": "missing: No such file or directory",
        "~model.dim": "Model.__init__() missing 1 required keyword-only argument: 'dim'",
    }.items(),
)
def test_what_a_constructor_refuses_is_one_line(command, line, message):
    answer = command(line)
    assert (answer.code, answer.err) == (1, f"error: {message}\n")


@pytest.mark.parametrize(
    "line, key, value",
    [
        ("+model.registers=4", "model.registers", 4),
        ("+data.options.depth=2", "data.options.depth", 2),
        ("++seed=5", "seed", 5),
        ("+model@teacher=tiny", "teacher.dim", 48),
        ("experiment=long", "seed", 7),
        ("backend=sdpa_flash", "backend", "sdpa_flash"),
        ("model.dropout=1", "model.dropout", 1),
        ("model.dropout=${loss.smoothing}", "model.dropout", 0.1),
    ],
)
def test_what_a_constructor_or_the_yaml_knows_passes(command, line, key, value):
    answer = command(line)
    assert (answer.code, answer.err) == (0, "")
    assert OmegaConf.select(answer.jobs[0].config, key) == value


@pytest.mark.parametrize(
    "line, error",
    [("model=bug", "a thing that must not happen"), ("model=library", "Invalid literal for Frac")],
)
def test_any_error_but_a_users_keeps_its_traceback(command, line, error):
    with pytest.raises(InstantiationException, match=error):
        command(line)


@pytest.mark.parametrize("line", ["modle=tiny", "model.dim=50"])
def test_the_traceback_of_a_refusal_is_there_for_the_asking(command, monkeypatch, line):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(Exception, match=r"modle|does not split"):
        command(line)


def test_a_job_of_a_sweep_that_fails_says_so_and_the_others_go_on(command):
    answer = command("-m model.dim=48,50,51 seed=1")
    assert answer.code == 1
    refusal = "dim=50 does not split over heads=3; use 2 or 4"
    assert f"error: job 1 (model.dim=50 seed=1): {refusal}\n" in answer.err
    assert "Traceback" not in answer.err
    together = answer.jobs[0].folder.parent
    jobs = [(job.config.model.dim, job.folder) for job in answer.jobs]
    assert jobs == [(48, together / "0"), (50, together / "1"), (51, together / "2")]


def test_a_bug_in_a_job_of_a_sweep_is_shown_at_once_and_the_others_go_on(command):
    answer = command("-m model=bug,tiny")
    assert answer.code == 1
    assert [job.choices["model"] for job in answer.jobs] == ["bug", "tiny"]
    assert "RuntimeError: a thing that must not happen" in answer.err
    assert "error: job 0 (model=bug): failed\n" in answer.err


def test_a_sweep_that_names_a_choice_which_is_not_there_starts_no_job(command):
    answer = command("-m data=cifar10,cifar11")
    assert (answer.code, answer.jobs) == (1, [])
    assert answer.err.startswith("error: data=cifar11 does not exist")


def test_a_job_of_a_sweep_can_be_started_again_alone_on_another_device(command):
    answer = command("-m seed=1,2 model.dropout=0.5")
    job = answer.jobs[1]
    assert job.argv == ["seed=2", "model.dropout=0.5"]
    assert Path(job.restarted_in).relative_to(Path.cwd()) == job.folder
    assert sys.argv[1] == "-m", "the command itself stays as it was typed"


def test_a_job_of_a_sweep_finds_nothing_that_the_one_before_it_left_in_the_environment(command):
    found = []

    def task() -> None:
        found.append(os.environ.get("LOCAL_RANK"))
        os.environ["LOCAL_RANK"] = "0"

    command("-m seed=1,2", then=task)
    assert found == [None, None]
    assert "LOCAL_RANK" not in os.environ


@pytest.fixture
def checkpoint(place):
    path = Path("runs/first/checkpoints/last.ckpt")
    (place / path).parent.mkdir(parents=True)
    (place / path).touch()
    return path


def test_a_checkpoint_is_gone_on_with_in_the_folder_of_its_run(command, place, checkpoint):
    assert command(f"ckpt_path={checkpoint}").jobs[0].folder == Path("runs/first")
    assert command(f"ckpt_path={place / checkpoint} seed=2").jobs[0].folder == Path("runs/first")

    other = command(f"ckpt_path={checkpoint} hydra.run.dir=runs/other")
    assert other.jobs[0].folder == Path("runs/other"), "unless another folder is named"

    moved = checkpoint.rename(place / "moved.ckpt")
    assert command(f"ckpt_path={moved}").jobs[0].folder.parent == Path("runs")


def test_an_evaluation_lies_in_the_folder_of_its_run_each_in_one_of_its_own(command, checkpoint):
    for name in ("test", "test-2"):
        [job] = command(f"ckpt_path={checkpoint}", config_name="eval").jobs
        assert job.folder == Path("runs/first/eval") / name


def test_a_run_folder_that_cannot_be_made_is_one_line(command, place):
    (place / "runs").write_text("a file where the runs should go")
    answer = command("")
    way_out = "Not a directory; choose another with hydra.run.dir=…"
    assert re.fullmatch(f"error: cannot make the run folder runs/.*{way_out}\n", answer.err)
    assert answer.code == 1


def interrupt() -> None:
    raise KeyboardInterrupt


def terminate() -> None:
    raise SIGTERMException


def shut_down() -> None:
    """As Lightning ends after Ctrl-C."""
    try:
        interrupt()
    except KeyboardInterrupt:
        sys.exit(1)


@pytest.mark.parametrize(
    "end, code", [(interrupt, 130), (shut_down, 130), (terminate, 143), (lambda: sys.exit(3), 3)]
)
def test_the_exit_code_tells_how_the_command_ended(command, end, code):
    answer = command("", then=end)
    assert (answer.code, answer.err) == (code, "")
