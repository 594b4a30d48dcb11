"""A timm model, and one of torch's own layers, as baselines in the same harness."""

import json

import pytest

SHORT = (
    "model=timm", "data=synthetic", "data.image_size=32", "data.dataset.train=40",
    "data.dataset.test=12", "data.batch_size=8", "trainer=cpu", "trainer.max_epochs=1",
    "trainer.log_every_n_steps=1", "logger=none",
)  # fmt: skip


@pytest.mark.parametrize(
    "name, kernel", [("test_vit", "scaled_dot_product"), ("test_resnet", None)]
)
def test_a_timm_model_trains_and_evaluates(command, name, kernel):
    run = command("train", *SHORT, f"model.name={name}")
    assert (run.code, run.err, run.count) == (0, "", 12)
    assert run.line("attention") == "the model's own (see kernels in receipt.json)"
    receipt = json.loads((run.folder / "receipt.json").read_text())
    assert receipt["layers"] == {}
    assert any(kernel in seen for seen in receipt["kernels"]["forward"]) if kernel else True
    again = command("eval", f"ckpt_path={run.best}")
    assert again.report == run.report


def test_a_vit_of_torchs_layers_trains_and_evaluates(command):
    run = command("train", *SHORT, "model=torch_vit", "model.patch_size=8", "model.depth=2")
    assert (run.code, run.err, run.count) == (0, "", 12)
    assert json.loads((run.folder / "receipt.json").read_text())["layers"] == {}
    assert command("eval", f"ckpt_path={run.best}").report == run.report


def test_a_timm_model_of_one_size_says_so_when_another_is_asked(command):
    run = command("train", *SHORT, "model.name=test_vit")
    other = command("eval", f"ckpt_path={run.best}", "image_size=48")
    assert other.code == 1
    assert "pos_embed" in other.err
    assert other.err.endswith("use a checkpoint of this model and image size\n")
