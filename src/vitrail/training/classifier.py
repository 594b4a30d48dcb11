"""Training and evaluating an image classifier."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from pytorch_lightning import LightningModule
from pytorch_lightning.callbacks import Timer
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer

from vitrail.errors import UserError
from vitrail.training.metrics import ClassificationMetrics, RunningMeans
from vitrail.training.mixing import Mixing
from vitrail.training.optim import Optim
from vitrail.training.strategies import FSDP

Batch = tuple[Tensor, Tensor, Tensor | None]


class Classifier(LightningModule):
    """Trains `network`, (B, 3, H, W) -> (B, len(classes)) logits, to name the classes.

    Batches are (images, labels, valid): float (B, 3, H, W), int64 (B,), and a bool mask (B, H, W),
    True = real pixel, or None; the network is given a mask only where there is one.

    Logs train/loss, lr (the head's, where layers have their own), train/acc (over augmented images;
    absent where they are mixed), and for each of val and test: acc, acc_top5 (for more than 5
    classes) and loss, which is plain cross-entropy. All weights lie in `network`: a checkpoint
    names them `network.` and then as the network does, compiled or not.

    Args:
        network: called as `network(images)` or `network(images, valid)`.
        classes: names, in the order of the labels.
        optim: the optimizer and its schedule.
        label_smoothing: share of each target that goes to all classes evenly, in training.
        mixup, cutmix: see `Mixing`; in training alone.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        classes: Sequence[str],
        optim: Optim,
        label_smoothing: float,
        mixup: float | None,
        cutmix: float | None,
    ):
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise UserError(f"classifier.label_smoothing must be in [0, 1), got {label_smoothing}")
        self.network = network
        self.classes = tuple(classes)
        self.optim = optim
        self.label_smoothing = label_smoothing
        self.mixing = Mixing(mixup=mixup, cutmix=cutmix, classes=len(self.classes))
        self._means = RunningMeans()
        self._reports: dict[str, dict[str, Any]] = {}

    def forward(self, images: Tensor, valid: Tensor | None = None) -> Tensor:
        """(B, C) logits, in float32 at least: sums over classes and images are made of them."""
        logits = self.network(images) if valid is None else self.network(images, valid)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def configure_model(self) -> None:
        if isinstance(self.trainer.strategy, FSDP):
            self.trainer.strategy.shard(self.network)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        steps = self.trainer.estimated_stepping_batches
        fused = getattr(self.trainer.precision_plugin, "scaler", None) is None
        how = {"elapsed": self._elapsed(), "fused": fused}
        optimizer, scheduler = self.optim.build(self.network, steps, **how)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    def _elapsed(self) -> Callable[[], float] | None:
        """The share of `trainer.max_time` that has passed, alike in every process."""
        timer = next((one for one in self.trainer.callbacks if isinstance(one, Timer)), None)
        if timer is None or timer.time_remaining() is None:
            return None

        def share() -> float:
            passed, left = timer.time_elapsed(), timer.time_remaining()
            return self.trainer.strategy.broadcast(passed / max(passed + left, 1e-9))

        return share

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip as Lightning does, but fused optimizers too: it refuses them in bf16-mixed, where no
        gradient is scaled."""
        if gradient_clip_val and gradient_clip_algorithm == "value":
            nn.utils.clip_grad_value_(self.network.parameters(), gradient_clip_val)
        elif gradient_clip_val:
            nn.utils.clip_grad_norm_(self.network.parameters(), gradient_clip_val)

    # Nothing in a step reads a tensor's value, so the GPU is never waited for. That is why nothing
    # is logged with `prog_bar=True` and the rate, a number of the CPU, is logged as a CPU tensor.

    def training_step(self, batch: Batch) -> Tensor:
        images, labels, valid = batch
        images, targets = self.mixing(images, labels, valid)
        logits = self(images, valid)
        loss = F.cross_entropy(logits, targets, label_smoothing=self.label_smoothing)
        self._means.add("train/epoch_loss", loss.detach(), len(labels))
        if not self.mixing.ways:
            right = (logits.argmax(dim=1) == labels).float().mean()
            self._means.add("train/acc", right, len(labels))
        self._log_training(loss)
        return loss

    def _log_training(self, loss: Tensor) -> None:
        """Log where the loggers write after this batch, or its epoch ends with it."""
        # Lightning takes any value at any batch, for half a millisecond each, and forgets most.
        trainer, steps = self.trainer, self.trainer.global_step + 1
        written = trainer.log_every_n_steps and steps % trainer.log_every_n_steps == 0
        if not (written or trainer.is_last_batch or steps == trainer.max_steps):
            return
        self.log("train/loss", loss)
        rate = max(self.lr_schedulers().get_last_lr())
        self.log("lr", torch.tensor(rate, dtype=torch.float64))
        for name, (mean, images) in self._means.take().items():
            whole = {"on_step": False, "on_epoch": True, "batch_size": images, "sync_dist": True}
            self.log(name, mean, **whole)

    def on_train_epoch_start(self) -> None:
        self._means.take()  # what an epoch left that was cut short

    def on_validation_epoch_start(self) -> None:
        # Made anew on the device: as a part of the module it would follow it into half precision.
        self._metrics = ClassificationMetrics(len(self.classes)).to(self.device)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            # BatchNorm's statistics differ between processes; all evaluate the first one's, which
            # are those that are saved.
            for buffer in self.network.buffers():
                torch.distributed.broadcast(buffer, src=0)

    def validation_step(self, batch: Batch) -> None:
        images, labels, valid = batch
        self._metrics.update(self(images, valid), labels)

    def on_validation_epoch_end(self) -> None:
        split = "test" if self.trainer.testing else "val"
        self._reports[split] = report = self._metrics.compute()
        for name in ("acc", "acc_top5", "loss"):
            if name in report:
                self.log(f"{split}/{name}", report[name], sync_dist=True)  # alike in every process

    on_test_epoch_start = on_validation_epoch_start
    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end

    def report(self, split: str) -> dict[str, Any]:
        """What the last evaluation of `split` (val or test) found, over all processes.

        Floats acc, acc_top5 (where classes > 5) and loss, an int count, confusion, int64 (C, C),
        true x predicted class, and the names of the classes.
        """
        return {**self._reports[split], "classes": self.classes}
