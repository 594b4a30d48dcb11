"""Two processes train and evaluate as one does, on images that do not divide evenly."""

import re

import pytest

from .calls import ROOT, SMALL, launch

pytestmark = pytest.mark.slow
OWN = (
    *(word for word in SMALL if word != "trainer=cpu"), "trainer.accelerator=cpu",
    "trainer.devices=2", "trainer.max_epochs=2", "precision=32-true",
)  # fmt: skip


@pytest.mark.parametrize("trainer", ["ddp", "fsdp"])
def test_two_processes_train_and_report_what_one_finds_in_their_checkpoint(
    command, tmp_path, trainer
):
    run = launch(
        ROOT / "train.py", f"trainer={trainer}", *OWN, "data.batch_size=50", place=tmp_path
    )
    assert run.code == 0, run.err
    assert len(re.findall(r"^data ", run.out, re.MULTILINE)) == 1, "one process speaks"
    assert "sync_dist" not in run.err, "Lightning misses nothing in what is logged"
    assert run.line("training") == "24 optimizer steps, batch 50 x 2 processes"
    assert run.count == 359
    assert len(list(run.folder.glob("wandb/offline-run-*"))) == 1
    assert len(list((tmp_path / "runs").iterdir())) == 1
    alone = command("eval", f"ckpt_path={run.best}", "trainer=cpu")
    assert alone.numbers == pytest.approx(run.numbers, abs=1e-5)
    if trainer == "ddp":
        together = launch(
            ROOT / "eval.py", f"ckpt_path={run.best}", "trainer=ddp", "trainer.accelerator=cpu",
            "trainer.devices=2", place=tmp_path,
        )  # fmt: skip
        assert (together.code, together.count) == (0, 359), together.err
        assert together.numbers == pytest.approx(run.numbers, abs=1e-5)
