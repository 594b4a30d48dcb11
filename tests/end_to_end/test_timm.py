"""A timm model, and one of torch's own layers, as baselines in the same harness."""

import pytest

SHORT = (
    "data=synthetic", "data.image_size=32", "data.dataset.train=40",
    "data.dataset.test=12", "data.batch_size=8", "trainer=cpu", "trainer.max_epochs=1",
    "trainer.log_every_n_steps=1", "logger=none",
)  # fmt: skip


@pytest.mark.parametrize(
    "model, kernel",
    {
        "model=timm model.name=test_vit": "scaled_dot_product",
        "model=timm model.name=test_resnet": "",
        "model=torch_vit model.patch_size=8 model.depth=2": "",
    }.items(),
)
def test_a_model_of_others_trains_and_evaluates(command, model, kernel):
    run = command("train", *SHORT, *model.split())
    assert (run.code, run.err, run.count) == (0, "", 12)
    assert run.line("attention") == "the model's own (see kernels in receipt.json)"
    assert run.receipt["layers"] == {}
    assert kernel in " ".join(run.receipt["kernels"]["forward"])
    assert command("eval", f"ckpt_path={run.best}").report == run.report


def test_a_timm_model_of_one_size_says_so_when_another_is_asked(command):
    run = command("train", *SHORT, "model=timm", "model.name=test_vit")
    other = command("eval", f"ckpt_path={run.best}", "image_size=48")
    assert other.code == 1
    assert "pos_embed" in other.err
    assert other.err.endswith("use a checkpoint of this model and image size\n")
