"""`train.py ckpt_path=…/last.ckpt` goes on as if nothing had happened."""

import shutil
import signal

import pytest
import torch

from .calls import read

# Three epochs of eight steps, drawn and augmented anew in every one.
TINY = (
    "data=synthetic", "data.image_size=8", "data.dataset.train=80", "data.dataset.test=10",
    "data.batch_size=8", "model.patch_size=2", "trainer.log_every_n_steps=1", "precision=32-true",
)  # fmt: skip
STOPS = {
    "in epoch 0": ("training_step", 4),
    "in epoch 1": ("training_step", 13),
    "on the last batch of an epoch": ("training_step", 8),
    "on the first batch of an epoch": ("training_step", 9),
    "in validation": ("validation_step", 1),
    "when an epoch has ended": ("on_validation_epoch_end", 2),
}


@pytest.mark.parametrize("every", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_that_was_stopped_ends_where_a_straight_one_does(train, resume, stopped, every):
    own = (
        *TINY, "trainer.max_epochs=3", f"trainer.check_val_every_n_epoch={every}",
        "ema_decay=0.9", "trainer.num_sanity_val_steps=0",
    )  # fmt: skip
    straight = train(*own)
    expected = read(straight.last)
    assert (expected["epoch"], expected["global_step"]) == (2, 24)
    for number, (when, stop) in enumerate(STOPS.items()):
        with stopped(*stop, signal.SIGTERM):
            train(*own, f"hydra.run.dir=parts-{number}")
        resumed = resume(f"parts-{number}/checkpoints/last.ckpt")
        assert (resumed.code, resumed.err) == (0, ""), when
        assert "24 optimizer steps of which" in resumed.out, when
        for column in ("lr", "train/loss", "val/loss"):
            assert resumed.rows(column) == straight.rows(column), f"{column}, stopped {when}"
        assert resumed.report == straight.report, when
        found = read(resumed.last)
        assert (found["epoch"], found["global_step"]) == (2, 24), when
        for kind in ("state_dict", "current_model_state"):
            for name, weight in expected[kind].items():
                torch.testing.assert_close(found[kind][name], weight, atol=1e-6, rtol=0)


def test_more_epochs_go_on_in_the_same_folder_and_in_one_wandb_run(train, resume, offline_runs):
    first = train(*TINY, "logger=wandb", "ema_decay=0.9")
    averaged = read(first.last)["averaging_state"]["n_averaged"]
    second = resume(first.last, "trainer.max_epochs=2")
    assert (second.code, second.folder) == (0, first.folder)
    assert second.line("training").startswith("16 optimizer steps of which 8 are done")
    assert [row["step"] for row in second.rows("train/loss")] == [str(step) for step in range(16)]
    assert read(second.last)["averaging_state"]["n_averaged"] - averaged == 8
    before, after = offline_runs(first.folder)
    assert before.id == after.id == read(second.last)["hyper_parameters"]["wandb_id"]
    assert before.steps("train/loss") + after.steps("train/loss") == list(range(16))


def test_overrides_reach_what_follows_from_them_and_a_trainer_only_where_a_run_goes_on(
    train, resume
):
    first = train(*TINY, "trainer.gradient_clip_val=0.5")
    second = resume(first.last, "trainer=auto", "trainer.max_epochs=2", "backend=sdpa_flash")
    assert second.line("attention") == "sdpa_flash in 1 layer"
    config = read(second.last)["hyper_parameters"]["config"]
    assert (config["model"]["backend"], config["model"]["dim"]) == ("sdpa_flash", 16)
    assert config["trainer"]["accelerator"] == "auto"
    assert config["trainer"]["gradient_clip_val"] == 0.5, "what is not overridden stays"


def test_the_best_epoch_is_remembered_also_when_the_folder_was_renamed(train, resume, tmp_path):
    first = train(*TINY, "optim.lr=0.01", "trainer.max_epochs=4")
    best = float(max(row["val/acc"] for row in first.rows("val/acc")))
    shutil.move(first.folder, tmp_path / "renamed")
    second = resume("renamed/checkpoints/last.ckpt", "trainer.max_epochs=5")
    assert (second.code, second.err) == (0, "")
    [state] = [
        state for name, state in read(second.last)["callbacks"].items() if "BestAndLast" in name
    ]
    accuracies = [float(row["val/acc"]) for row in second.rows("val/acc")]
    assert state["best_model_score"].item() == pytest.approx(max(best, *accuracies))
    assert state["best_model_path"] == str(tmp_path / "renamed/checkpoints/best.ckpt")


def test_a_finished_run_is_left_as_it_is_and_a_moved_checkpoint_begins_a_folder(
    train, resume, tmp_path
):
    first = train(*TINY)
    weights = first.best.read_bytes()
    again = resume(first.last)
    assert (again.code, again.report) == (0, first.report)
    second = resume(shutil.copy(first.last, tmp_path / "moved.ckpt"), "trainer.max_epochs=2")
    assert (second.code, second.folder.parent) == (0, tmp_path / "runs")
    assert second.folder != first.folder
    assert second.line("checkpoint:").startswith(str(second.folder.relative_to(tmp_path)))
    assert first.best.read_bytes() == weights


def test_the_classes_of_a_run_keep_their_numbers_when_the_data_lose_some(train, resume):
    first = train(*TINY)
    fewer = "data.classes=[class_7,class_3]"
    second = resume(first.last, "trainer.max_epochs=2", "data.batch_size=2", fewer)
    assert second.code == 0
    assert read(second.last)["hyper_parameters"]["classes"] == [f"class_{n}" for n in range(10)]
    seen = [line.split(",")[:2] for line in (second.folder / "per_class.csv").read_text().split()]
    assert [name for name, count in seen[1:] if count != "0"] == ["class_3", "class_7"]


REFUSED = {
    "experiment=cifar10_vit_tiny": "experiment=cifar10_vit_tiny cannot be combined with ckpt_path=",
    "optim=muon": "optim=muon cannot be applied to a run that goes on with its own optimizer",
    "optim.lr=1": "optim.lr=1 cannot be applied to a run that goes on with its own optimizer",
    "model.dim=32": "does not fit the model: shape blocks.0.attn.proj.bias (16,) instead of (32,)",
    "ema_decay=null": "ema_decay=null cannot be applied to ckpt_path=",
    "data=digits": "has 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, not among the 10 classes of the model",
}


def test_what_a_run_cannot_go_on_with_is_refused_in_one_line(train, resume):
    first = train(*TINY, "ema_decay=0.9")
    before = first.last.read_bytes()
    for override, message in REFUSED.items():
        answer = resume(first.last, "trainer.max_epochs=2", override)
        assert (answer.code, answer.out) == (1, ""), override
        assert answer.err.count("\n") == 1
        assert message in answer.err
    assert first.last.read_bytes() == before
