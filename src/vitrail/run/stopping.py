"""Ctrl-C during training: stop where it can be gone on from."""

import os
import signal
from types import FrameType

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback


class StopBetweenBatches(Callback):
    """Turns the first Ctrl-C of a fit into the SIGTERM that Lightning obeys when a batch is done.

    Stopped within a batch, a run has read data that it has not learned from, and may have taken a
    step that it has not counted. A second Ctrl-C stops at once, and so does the first one where
    several processes train together: they would stop at different batches and wait for each other.

    `asked` says whether it was Ctrl-C that ended the fit.
    """

    def __init__(self):
        self.asked = False
        self._before = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.world_size == 1:
            self._before = signal.signal(signal.SIGINT, self._stop)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._restore()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._restore()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._restore()
        self.asked = True
        # Not by print, which may be what the signal has interrupted.
        os.write(1, b"stopping when this batch is done; Ctrl-C again stops at once\n")
        signal.raise_signal(signal.SIGTERM)

    def _restore(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None
