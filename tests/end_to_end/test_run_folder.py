"""What `train.py` leaves and says, without a file of data, a key, a network or a keyboard."""

import inspect
import os
import re
import shlex
import subprocess

import pytest
from omegaconf import OmegaConf

from vitrail.model import ViT

from .calls import ROOT, SMALL, Answer, environment, launch, read


def test_training_ends_well_without_a_word_on_stderr(run):
    assert (run.code, run.err) == (0, "")


def test_a_run_leaves_everything_in_its_folder(run):
    files = ("config.yaml", "metrics.csv", "receipt.json", "confusion.png", "per_class.csv")
    for path in (*(run.folder / name for name in files), run.best, run.last):
        assert path.stat().st_size, path
    assert len(list(run.folder.glob("wandb/offline-run-*/run-*.wandb"))) == 1
    assert not list(run.folder.rglob("*.tmp")), "drafts are gone"
    assert not [path for path in run.place.iterdir() if not path.name.startswith(".")]


def test_the_start_says_what_is_about_to_happen(run):
    assert run.line("data") == "Digits: 1,295 train, 143 val, 359 test; 10 classes"
    assert re.fullmatch(r"ViT, \S+ k parameters, \S+ k FLOPs an image, .* tokens \(4x4.*\)",
                        run.line("model"))  # fmt: skip
    assert run.line("attention") == "eager in 1 layer"
    assert run.line("training") == "40 optimizer steps, batch 64"
    assert re.search(r"^epoch 1/2: loss .*, val accuracy .*%, images/s \d", run.out, re.MULTILINE)


def test_the_chosen_precision_is_said_and_recorded(run):
    precision, why = re.fullmatch(r"(\S+) \((.+)\)", run.line("precision")).groups()
    assert precision in ("bf16-mixed", "32-true")
    assert "bf16" in why
    assert run.receipt["precision"] == precision


def test_the_config_beside_the_checkpoints_is_resolved(run):
    text = (run.folder / "config.yaml").read_text()
    config = OmegaConf.create(text)
    assert "${" not in text
    assert (config.model.dim, config.model.image_size, config.model.backend) == (16, 8, "eager")


def test_the_printed_eval_line_gives_the_same_figures_from_another_folder(run, tmp_path):
    line = run.line("evaluate it again:")
    again = subprocess.run(
        shlex.split(line), cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True
    )
    assert (again.returncode, again.stderr) == (0, "")
    assert run.report in again.stdout.splitlines()
    assert "weights" in again.stdout
    assert not [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    evaluation = Answer(0, again.stdout, "", tmp_path).folder
    assert evaluation.parent == run.folder / "eval"
    for name in ("confusion.png", "per_class.csv"):
        assert (evaluation / name).stat().st_size
    assert (evaluation / "per_class.csv").read_text() == (run.folder / "per_class.csv").read_text()


def test_a_login_node_that_has_srun_is_no_reason_for_a_warning(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/srun").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    run = launch(ROOT / "train.py", *SMALL, "trainer.max_steps=1", "logger=none", place=tmp_path)
    assert (run.code, run.err) == (0, "")


def test_from_the_command_to_the_model_there_are_few_calls_of_ours(train, monkeypatch):
    forward, stacks = ViT.forward, []

    def watched(self, *arguments):
        stacks.append([f"{f.filename}:{f.function}" for f in inspect.stack(context=0)])
        return forward(self, *arguments)

    monkeypatch.setattr(ViT, "forward", watched)
    train("trainer.max_steps=1", "trainer.num_sanity_val_steps=0", "trainer.limit_val_batches=0")
    ours = [[call for call in stack if "/src/vitrail/" in call] for stack in stacks]
    [step] = [calls for calls in ours if any("training_step" in call for call in calls)]
    assert len(step) <= 6, step


def test_last_is_the_last_step_and_best_the_latest_of_the_best_epochs(train):
    run = train("trainer.max_epochs=3", "optim.lr=10")  # learns nothing, so that epochs tie
    accuracy = [float(row["val/acc"]) for row in run.rows("val/acc")]
    latest = max(epoch for epoch, found in enumerate(accuracy) if found == max(accuracy))
    assert read(run.best)["epoch"] == latest
    assert (read(run.last)["epoch"], read(run.last)["global_step"]) == (2, 60)


def test_a_run_that_ends_within_an_epoch_has_a_checkpoint_too(train):
    run = train("trainer.max_steps=5")
    assert (run.code, run.err) == (0, "")
    assert run.line("training") == "5 optimizer steps, batch 64"
    assert run.line("checkpoint:").endswith("checkpoints/last.ckpt")


@pytest.mark.parametrize(
    "line, best, last",
    [("trainer.max_steps=30 optim.lr=1e-6", 20, 30), ("data.val_fraction=0", 44, 44)],
    ids=["a step that was never validated", "no validation split"],
)
def test_the_best_is_the_last_that_was_validated_or_else_the_last_epoch(train, line, best, last):
    run = train("trainer.max_epochs=2", *line.split())
    assert (run.code, read(run.best)["global_step"], read(run.last)["global_step"]) == (
        0,
        best,
        last,
    )


def test_a_launch_from_another_folder_writes_there(train, tmp_path):
    (place := tmp_path / "other").mkdir()
    run = train("trainer.limit_train_batches=2", "trainer.log_every_n_steps=1", place=place)
    assert run.folder.parent == place / "runs"
    assert run.line("evaluate it again:").endswith(
        f"eval.py ckpt_path={run.folder.relative_to(place)}/checkpoints/best.ckpt"
    )


def test_equal_seeds_give_equal_runs_and_others_do_not(train):
    short = ("trainer.limit_train_batches=4", "trainer.log_every_n_steps=1", "deterministic=true")
    first, second = (
        train(*short, "seed=1"),
        train(*short, "seed=1", "trainer.enable_model_summary=false"),
    )
    other = train(*short, "seed=2")
    assert first.rows("train/loss") == second.rows("train/loss")
    assert first.report == second.report
    weights = read(second.last)["state_dict"]
    assert all(value.equal(weights[name]) for name, value in read(first.last)["state_dict"].items())
    assert first.rows("train/loss")[0] != other.rows("train/loss")[0]
    assert other.line("data") == first.line("data")
