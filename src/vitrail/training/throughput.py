"""Images per second of training alone."""

import time
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer


class Throughput(Callback):
    """Logs `train/images_per_second`, over all processes, whenever the losses are logged.

    Validation, checkpoints between epochs, and the first batch after each such pause (workers
    start, graphs compile) are left out. Lightning's ThroughputMonitor waits for the GPU after every
    batch; this clock does so only when it is read.
    """

    def __init__(self):
        self._images = 0
        self._seconds = 0.0
        self._since: float | None = None  # None while paused
        self._step = 0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._pause(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._pause(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._since is None:
            self._since = _now(trainer)
            return
        self._images += len(batch[0])
        every, step = trainer.log_every_n_steps, trainer.global_step
        if every and step % every == 0 and step != self._step:
            self._pause(trainer)
            rate = self._images * trainer.world_size / self._seconds
            pl_module.log("train/images_per_second", torch.tensor(rate))  # on the CPU: no waiting
            self._images, self._seconds, self._since, self._step = 0, 0.0, _now(trainer), step

    def _pause(self, trainer: Trainer) -> None:
        if self._since is not None:
            self._seconds += _now(trainer) - self._since
            self._since = None


def _now(trainer: Trainer) -> float:
    device = trainer.strategy.root_device
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()
