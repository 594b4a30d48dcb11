import logging

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from pytorch_lightning import Callback
from pytorch_lightning.plugins import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader

from vitrail.model import ViT
from vitrail.training.progress import Throughput


def losses_of(model) -> list[torch.Tensor]:
    """A list that the loss of every training step of `model` is added to."""
    losses, step = [], model.training_step
    model.training_step = lambda batch: losses.append(step(batch)) or losses[-1]
    return losses


@pytest.mark.parametrize("sizes", [[4, 4, 2], 1, 3, 10])
def test_an_evaluation_is_over_images_and_not_over_batches(sizes, classify, trainer):
    labels = torch.arange(10) % 3
    shown = torch.where(torch.arange(10) < 8, labels, (labels + 1) % 3)
    images = 9 * F.one_hot(shown, 3).float()[:, :, None, None]  # flat, they are logits
    pairs = zip(images.split(sizes), labels.split(sizes), strict=True)
    data = DataLoader([(image, label, None) for image, label in pairs], batch_size=None)
    model = classify(3, nn.Flatten(), label_smoothing=0.3, mixup=0.5)
    loss = F.cross_entropy(images.flatten(1).double(), labels).item()
    for split, evaluate in (("val", trainer().validate), ("test", trainer().test)):
        logged = evaluate(model, data, verbose=False)[0]
        plain = pytest.approx(loss, rel=1e-6)
        assert logged == {f"{split}/acc": pytest.approx(0.8), f"{split}/loss": plain}
        report = model.report(split)
        assert report.pop("confusion").tolist() == [[3, 1, 0], [0, 3, 0], [1, 0, 2]]
        assert report == {"acc": 0.8, "loss": plain, "count": 10, "classes": model.classes}


@pytest.mark.parametrize("classes, named", [(5, False), (6, True)])
def test_top_5_is_logged_where_there_are_more_classes_than_that(
    classes, named, classify, batched, trainer
):
    found = trainer().validate(classify(classes), batched(12, 5, classes), verbose=False)[0]
    assert ("val/acc_top5" in found) is named


@pytest.mark.parametrize("size", [4, 6])
def test_seven_images_in_batches_of_4_and_3_and_of_1_train_under_mixup_and_cutmix(
    size, classify, batched, fit
):
    model = classify(3, mixup=0.8, cutmix=1.0, label_smoothing=0.1)
    fitted = fit(model, batched(7, size), max_epochs=2)
    assert fitted.global_step == 4
    assert torch.isfinite(fitted.callback_metrics["train/loss"])


@pytest.mark.parametrize("mixed", [True, False])
def test_accuracy_in_training_is_logged_only_where_images_are_not_mixed(mixed, classify, fit):
    fitted = fit(classify(3, mixup=0.8 if mixed else None))
    assert ("train/acc" in fitted.callback_metrics) is not mixed


def test_losses_and_the_rate_of_each_step_are_logged(classify, fit):
    folder = fit(classify(3), max_epochs=2).logger.log_dir
    rows = pd.read_csv(f"{folder}/metrics.csv")
    assert rows["step"][rows["train/loss"].notna()].tolist() == list(range(6))
    assert rows["lr"].dropna().tolist() == [0.1] * 6
    assert rows["val/acc"].count() == 2


@pytest.mark.parametrize("every", [0, 1, 2, 3])
def test_the_means_of_an_epoch_are_over_its_images_however_seldom_is_logged(every, classify, fit):
    model = classify(3)
    losses = losses_of(model)
    metrics = fit(model, max_epochs=2, log_every_n_steps=every).callback_metrics
    *_, first, second, third = [loss.item() for loss in losses]  # of 4, 4 and 2 images
    mean = (4 * first + 4 * second + 2 * third) / 10
    assert metrics["train/epoch_loss"].item() == pytest.approx(mean, rel=1e-6)
    assert metrics["train/loss"].item() == pytest.approx(third)


def test_an_epoch_that_is_cut_short_has_a_mean_of_its_own_batches(classify, fit):
    model = classify(3)
    losses = losses_of(model)
    fitted = fit(model, max_epochs=-1, max_steps=5, log_every_n_steps=3, limit_val_batches=0)
    assert len(losses) == 5, "three batches, and two of four images each"
    mean = (losses[3].item() + losses[4].item()) / 2
    assert fitted.callback_metrics["train/epoch_loss"].item() == pytest.approx(mean)


def test_lightning_is_handed_values_only_where_they_are_written(classify, batched, fit):
    model, handed = classify(3), []
    log = model.log
    model.log = lambda name, *value, **how: (
        handed.append((model.global_step, name)) or log(name, *value, **how)
    )
    fit(model, batched(20, 4), log_every_n_steps=3, limit_val_batches=0)
    assert {step for step, _ in handed} == {2, 4}, "the third step is written, the fifth the last"
    assert [name for step, name in handed if step == 2] == [
        "train/loss", "lr", "train/epoch_loss", "train/acc",
    ]  # fmt: skip


def test_a_network_is_given_the_mask_of_real_pixels_where_there_is_one(classify, trainer):
    class Asks(nn.Module):
        given = ()

        def forward(self, images, *valid):
            self.given += (valid,)
            return images.mean(dim=(2, 3))

    network, valid = Asks(), torch.ones(2, 4, 6, dtype=torch.bool)
    images, labels = torch.randn(2, 3, 4, 6), torch.tensor([0, 1])
    data = DataLoader([(images, labels, None), (images, labels, valid)], batch_size=None)
    trainer().validate(classify(3, network), data, verbose=False)
    assert network.given[0] == ()
    assert torch.equal(network.given[1][0], valid)


def test_nothing_waits_for_the_device_between_two_loggings(classify, batched, fit, readings):
    class Watch(Callback):
        """From the end of the first batch to the beginning of the one that is logged."""

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if batch_idx == 0:
                readings.__enter__()

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 5:
                readings.__exit__(None, None, None)

    given = {"callbacks": [Watch(), Throughput()], "log_every_n_steps": 6}
    fit(classify(3), batched(24, 4), **given, gradient_clip_val=1.0)
    assert not readings.stacks, readings.stacks[0]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true", "64-true"])
def test_gradients_are_clipped_and_losses_summed_in_every_precision(
    precision, classify, batched, trainer, optim
):
    optim = optim(name="momentum", lr=1.0, weight_decay=0.0, options={"momentum": 0.0})
    model = classify(3, optim=optim)
    fitted = trainer(max_epochs=1, gradient_clip_val=0.01, precision=precision)
    before = nn.utils.parameters_to_vector(model.parameters()).clone()
    fitted.fit(model, batched(40, 40), batched(40, 7))
    change = nn.utils.parameters_to_vector(model.parameters()).float() - before
    off = 0.2 if precision == "bf16-true" else 0.01
    assert change.norm().item() == pytest.approx(0.01, rel=off)
    loss = model.report("val")["loss"]
    trainer(precision=precision).validate(model, batched(40, 40), verbose=False)
    assert model.report("val")["loss"] == pytest.approx(loss, rel=1e-6), "in one batch"


def test_a_fused_optimizer_is_clipped_in_bf16_mixed_where_lightning_would_refuse_it(classify, fit):
    class Norms(Callback):
        """Of the gradients that the step before was taken with."""

        found = ()

        def on_before_zero_grad(self, trainer, pl_module, optimizer):
            gradients = [p.grad for p in pl_module.parameters() if p.grad is not None]
            self.found += (nn.utils.get_total_norm(gradients).item(),) if gradients else ()

    norms = Norms()
    given = {"gradient_clip_val": 0.01, "precision": "bf16-mixed"}
    fitted = fit(classify(3), callbacks=[norms], **given)
    assert fitted.optimizers[0].param_groups[0]["fused"]
    assert norms.found == pytest.approx([0.01, 0.01], rel=1e-3)


def test_where_gradients_are_scaled_the_optimizer_is_not_fused(classify, fit):
    scaling = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    fitted = fit(classify(3), gradient_clip_val=0.01, plugins=[scaling])
    assert not fitted.optimizers[0].param_groups[0]["fused"]


def test_a_smoothing_that_is_no_share_is_refused(classify):
    with pytest.raises(ValueError, match=r"label_smoothing must be in \[0, 1\), got 1"):
        classify(3, label_smoothing=1)


def vit() -> ViT:
    torch.manual_seed(0)
    return ViT(image_size=8, patch_size=4, dim=16, depth=1, heads=2, num_classes=3)


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiling_changes_neither_names_nor_numbers(
    backend, classify, batched, fit, optim, caplog
):
    caplog.set_level(logging.ERROR)
    states, losses = [], []
    # Not AdamW: the bias of the keys has no gradient, and it would make whole steps of rounding.
    optim = optim(name="momentum", options={"momentum": 0.9})
    for compiled in (True, False):
        network = vit()
        if compiled:
            network.compile(backend=backend)
        model = classify(3, network, optim=optim)
        fit(model, batched(12, 4, shape=(3, 8, 8)))
        states.append(model.state_dict())
        losses.append(model.report("val")["loss"])
    assert states[0].keys() == states[1].keys() == {f"network.{n}" for n in vit().state_dict()}
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], msg=name)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
