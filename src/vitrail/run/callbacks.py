"""What a run does around its steps: the same callbacks in train.py and in bench=step."""

import os
import signal
import time
from pathlib import Path

from pytorch_lightning import Callback, LightningModule, Trainer

from vitrail.attention.selection.stopwatch import clock
from vitrail.run.checkpoint import BestAndLast
from vitrail.run.console import say
from vitrail.run.plan import Plan
from vitrail.tracking.loggers import Loggers
from vitrail.tracking.receipt import Receipt, watch
from vitrail.training.progress import PeakMemory, Progress, Throughput


class StopBetweenBatches(Callback):
    """Turns the first Ctrl-C of a fit into the SIGTERM that Lightning obeys when a batch is done.

    Stopped within a batch, a run has read data that it has not learned from, and may have taken a
    step that it has not counted. A second Ctrl-C stops at once, and so does the first one where
    several processes train together: they would stop at different batches and wait for each other.

    `asked`: whether a first Ctrl-C asked for a stop between batches (one process only).
    """

    def __init__(self):
        self.asked = False
        self._before = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.world_size == 1:
            self._before = signal.signal(signal.SIGINT, self._stop)

    def on_train_end(self, *_: object) -> None:
        self._restore()

    def on_exception(self, *_: object) -> None:
        self._restore()

    def _stop(self, *_: object) -> None:
        self._restore()
        self.asked = True
        # Not by print, which may be what the signal has interrupted.
        os.write(1, b"stopping when this batch is done; Ctrl-C again stops at once\n")
        signal.raise_signal(signal.SIGTERM)

    def _restore(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None


class CompileTime(Callback):
    """Says how long the first step took, which compiles, and the third: the second is profiled."""

    def __init__(self) -> None:
        self._began = 0.0
        self._took: list[float] = []

    def on_train_batch_start(self, *_: object) -> None:
        self._began = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        if len(self._took) < 3:
            self._took.append(clock(pl_module.device.type) - self._began)
            if len(self._took) == 3:
                first, _, third = self._took
                say(f"compiled: the first step took {first:.1f} s, the third {third:.2f} s")


def step_callbacks(
    plan: Plan,
    loggers: Loggers,
    folder: Path,
    *,
    stopping: StopBetweenBatches,
    checkpoints: BestAndLast,
    compiled: bool,
    from_step: int,
) -> list[Callback]:
    """The callbacks with a hook inside the loop, but for EMA, which a loop of torch would have too.

    plan, compiled and from_step are what the receipt in the run's `folder` tells, see `Receipt`.
    """
    facts = {"precision": plan.precision, "compiled": compiled, "from_step": from_step}
    kernels = watch(Receipt(layers=plan.layers, **facts), loggers, folder)
    compiling = [CompileTime()] if compiled else []
    return [Progress(), Throughput(), PeakMemory(), kernels, stopping, checkpoints, *compiling]
