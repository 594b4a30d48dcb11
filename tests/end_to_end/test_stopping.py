"""Ctrl-C and SIGTERM: a checkpoint at the step that was reached, and the way to go on."""

import os
import signal
import subprocess
import sys

import pytest

from .calls import ROOT, SMALL, environment, read

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("step", [3, 27])
def test_a_stopped_run_can_be_gone_on_with_from_where_it_was(
    train, resume, stopped, offline_runs, number, step
):
    with stopped("training_step", step, number):
        run = train("trainer.max_epochs=3", "logger=wandb")
    assert run.code == CODES[number]
    assert "Traceback" not in run.err
    assert read(run.last)["global_step"] == step
    go_on = f"train.py ckpt_path={run.last.relative_to(run.place)}"
    assert run.line("stopped; go on with:").endswith(go_on)
    assert "test accuracy" not in run.out
    assert [part.exit_code for part in offline_runs(run.folder)] == [CODES[number]]

    resumed = resume(run.last, "trainer.max_epochs=2", "logger=none")
    assert resumed.code == 0
    assert resumed.line("training").startswith(f"40 optimizer steps of which {step} are done")


@pytest.mark.parametrize("number", CODES)
def test_a_run_that_is_stopped_before_its_first_step_leaves_no_checkpoint(train, stopped, number):
    with stopped("validation_step", 1, number):  # of the sanity check
        run = train()
    assert run.code == CODES[number]
    assert "go on with" not in run.out
    assert not list(run.folder.rglob("*.ckpt"))


def test_stopping_the_last_evaluation_leaves_the_last_checkpoint_alone(train, stopped):
    with stopped("test_step", 1, signal.SIGINT):
        run = train("trainer.max_epochs=2", "optim.lr=1e-6")  # the first of two equals is the best
    assert run.code == 130
    last, best = read(run.last), read(run.best)
    assert (best["global_step"], last["global_step"]) == (20, 40)
    same = [weight.equal(best["state_dict"][name]) for name, weight in last["state_dict"].items()]
    assert not all(same), "the weights that are being evaluated are not written as the last ones"


def test_a_second_ctrl_c_stops_at_once(train, stopped):
    with stopped("training_step", 5, signal.SIGINT, signal.SIGINT):
        run = train()
    assert run.code == 130
    assert read(run.last)["global_step"] == 4


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_reaches_all_processes_and_all_end(tmp_path, offline_runs):
    command = [sys.executable, ROOT / "train.py", *SMALL, "trainer.max_epochs=1000"]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    own = {"cwd": tmp_path, "env": environment(tmp_path), "start_new_session": True}
    with subprocess.Popen([*command, "hydra.run.dir=run"], text=True, **own, **pipes) as process:
        for line in process.stdout:
            if line.startswith("epoch 2/"):
                os.killpg(process.pid, signal.SIGINT)
                break
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert "go on with:" in out
    assert read(tmp_path / "run/checkpoints/last.ckpt")["global_step"] >= 40
    assert [part.exit_code for part in offline_runs(tmp_path / "run")] == [130]
