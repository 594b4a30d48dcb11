"""How fast training is and how long it has taken, without what comes between its epochs."""

import time
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.utilities.exceptions import SIGTERMException


class Throughput(Callback):
    """Logs `train/images_per_second` of all processes and `train/seconds` since the first step.

    The speed comes with the losses, the time with what an epoch and a validation give; a resumed
    run counts on. Validation and the checkpoints that follow it are left out of both, and of the
    speed the first batch after each such pause too (workers start, graphs compile). Lightning's
    ThroughputMonitor waits for the GPU after every batch; this clock does so only when it is read.
    """

    def __init__(self):
        self._images = 0
        self._seconds = 0.0
        self._since: float | None = None  # None while paused
        self._step = 0
        self._trained = 0.0
        self._begun: float | None = None  # None between epochs and from validation to a batch

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._pause(trainer)
        self._begun = _now(trainer)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._begun is None:
            self._begun = _now(trainer)

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

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._pause(trainer)
        self._stop(trainer)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._log_time(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop(trainer)
        self._log_time(trainer, pl_module)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        if isinstance(exception, KeyboardInterrupt | SIGTERMException):  # a checkpoint follows
            self._stop(trainer)

    def state_dict(self) -> dict[str, float]:
        return {"seconds": self._trained}

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        self._trained = state_dict["seconds"]

    def _pause(self, trainer: Trainer) -> None:
        if self._since is not None:
            self._seconds += _now(trainer) - self._since
            self._since = None

    def _stop(self, trainer: Trainer) -> None:
        if self._begun is not None:
            self._trained += _now(trainer) - self._begun
            self._begun = None

    def _log_time(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            pl_module.log("train/seconds", self._trained, sync_dist=True)


def _now(trainer: Trainer) -> float:
    device = trainer.strategy.root_device
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()
