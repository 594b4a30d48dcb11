"""When a file cannot be written, the previous one stays and the error names it."""

import os

import pytest

from .calls import read


def test_a_checkpoint_that_does_not_fit_leaves_the_previous_ones(train, resume, full_disk):
    first = train()
    before = {path: path.read_bytes() for path in (first.best, first.last)}
    with full_disk(20_000):
        second = resume(first.last, "trainer.max_epochs=2")
    assert second.code == 1
    assert second.err in {f"error: {path}: File too large\n" for path in before}
    assert before == {path: path.read_bytes() for path in before}
    assert {path.name for path in first.last.parent.iterdir()} == {"best.ckpt", "last.ckpt"}


def test_a_run_whose_first_checkpoint_does_not_fit_leaves_none(train, full_disk):
    with full_disk(20_000):
        run = train()
    assert (run.code, run.err.count("\n")) == (1, 1)
    assert not list(run.folder.rglob("*ckpt*"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folders_that_may_not_be_written_to_are_named(train, resume, tmp_path):
    (tmp_path / "closed").mkdir(mode=0o555)
    run = train("hydra.run.dir=closed/run")
    assert (run.code, run.err) == (1, "error: closed/run: Permission denied\n")

    first = train()
    first.last.parent.chmod(0o555)
    second = resume(first.last, "trainer.max_epochs=2")
    first.last.parent.chmod(0o755)
    assert (second.code, second.err.count("\n")) == (1, 1)
    assert second.err.endswith(".ckpt: Permission denied\n")
    assert read(first.last)["global_step"] == 20


def test_a_file_where_the_checkpoints_should_lie_is_named(train, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/checkpoints").touch()
    run = train("hydra.run.dir=taken")
    assert (run.code, run.err) == (1, f"error: {tmp_path}/taken/checkpoints: File exists\n")
