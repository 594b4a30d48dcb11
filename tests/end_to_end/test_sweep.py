"""`-m`: one folder, one W&B run and one receipt a job, and a job that fails, fails alone."""

import json

import yaml

from .calls import SMALL, read

SHORT = ("trainer.max_epochs=1", "trainer.limit_train_batches=3", "trainer.log_every_n_steps=1")


def test_four_jobs_leave_four_folders_four_wandb_runs_and_four_receipts(
    command, tmp_path, offline_runs
):
    sweep = command("train", "-m", *SMALL, *SHORT, "backend=reference,sdpa_flash", "seed=0,1")
    assert sweep.code == 0, sweep.err
    [folder] = (tmp_path / "runs").iterdir()
    jobs = [folder / str(number) for number in range(4)]
    ids, configs, losses = set(), [], {}
    for job in jobs:
        config = yaml.safe_load((job / "config.yaml").read_text())
        receipt = json.loads((job / "receipt.json").read_text())
        [run] = offline_runs(job)
        assert run.exit_code == 0
        assert run.config["seed"] == config["seed"]
        assert run.config["backend"] == config["backend"]
        ids.add(run.id)
        configs.append((config["backend"], config["seed"]))
        [layer] = receipt["layers"].values()
        assert layer["requested"] == layer["chosen"] == config["backend"]
        own = "flash" if config["backend"] == "sdpa_flash" else "aten::bmm"
        assert own in " ".join(receipt["kernels"]["forward"])
        losses[configs[-1]] = next(row["train/loss"] for row in run.history if "train/loss" in row)
    assert len(ids) == 4
    assert configs == [("reference", 0), ("reference", 1), ("sdpa_flash", 0), ("sdpa_flash", 1)]
    assert losses["reference", 0] != losses["reference", 1]

    alone = command("train", *SMALL, *SHORT, "backend=sdpa_flash", "seed=1", "logger=none")
    weights = read(jobs[3] / "checkpoints/last.ckpt")["state_dict"]
    for name, weight in read(alone.last)["state_dict"].items():
        assert weight.equal(weights[name]), f"{name} of a job alone and in a sweep"


def test_a_job_that_fails_leaves_the_others_alone(command, tmp_path):
    short = (*SMALL, *SHORT, "logger=none")
    sweep = command("train", "-m", *short, "model.heads=3,2")
    assert sweep.code == 1
    assert "dim=16 does not split over heads=3" in sweep.err
    [folder] = (tmp_path / "runs").iterdir()
    assert (folder / "1/checkpoints/last.ckpt").is_file()
    assert not (folder / "0/checkpoints").exists()
