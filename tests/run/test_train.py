"""Training and evaluating called from Python, as a comparison of backends and seeds does."""

import pytest
import torch
from hydra import compose, initialize_config_dir

from vitrail.errors import UserError
from vitrail.run.evaluate import evaluate_checkpoint
from vitrail.run.train import train
from vitrail.startup import configs

SMALL = (
    "model.dim=16", "model.depth=1", "model.heads=2", "trainer=cpu", "logger=none",
    "trainer.max_epochs=1",
)  # fmt: skip


def config(*overrides: str):
    with initialize_config_dir(str(configs()), version_base="1.3"):
        return compose("train", [*SMALL, *overrides])


def test_a_training_returns_its_best_checkpoint_and_its_metrics(tmp_path):
    result = train(config("backend=eager"), tmp_path)
    assert result.best == tmp_path / "checkpoints/best.ckpt"
    names = {"steps", "train/seconds", "train/images_per_second", "val/acc"}
    assert result.metrics.keys() == names | {"test/acc", "test/acc_top5", "test/loss"}
    assert result.metrics["steps"] == 20
    assert result.metrics["train/seconds"] > 0


def test_one_process_trains_again_from_the_seed_alone_and_goes_on(tmp_path):
    first, second = (train(config("backend=eager"), tmp_path / name) for name in "ab")
    assert first.metrics["test/loss"] == second.metrics["test/loss"]
    last = tmp_path / "a/checkpoints/last.ckpt"
    again = train(config(f"ckpt_path={last}"), tmp_path / "a")
    assert again.metrics == first.metrics, "what is finished is evaluated and left as it is"


def test_a_checkpoint_is_evaluated_by_any_backend_without_a_word(tmp_path, capsys):
    best = train(config("backend=eager", "precision=32-true"), tmp_path).best
    before = set(tmp_path.rglob("*"))
    capsys.readouterr()
    own = evaluate_checkpoint(best)
    other = evaluate_checkpoint(best, backend="sdpa_flash")
    assert capsys.readouterr().out == ""
    assert set(tmp_path.rglob("*")) == before
    [layer] = other.layers.values()
    assert (layer.backend.name, len(layer.gate)) == ("sdpa_flash", 1)
    for report in (own, other):
        assert (report.split, report.count, report.confusion.sum()) == ("test", 359, 359)
        right = (report.logits.argmax(dim=1) == report.labels).float().mean()
        assert right == pytest.approx(report.acc)
    torch.testing.assert_close(own.logits, other.logits, atol=1e-4, rtol=0)
    with pytest.raises(UserError, match="sdpa_flsh does not exist"):
        evaluate_checkpoint(best, backend="sdpa_flsh")
