"""What a run shows and logs of its progress: losses, speed, time and memory."""

import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import TQDMProgressBar
from pytorch_lightning.utilities.exceptions import SIGTERMException

IN_LINES = {  # label and format of a metric
    "train/epoch_loss": ("loss", ".4f"),
    "train/acc": ("train accuracy", ".2%"),
    "val/loss": ("val loss", ".4f"),
    "val/acc": ("val accuracy", ".2%"),
    "train/images_per_second": ("images/s", ",.0f"),
}
BESIDE_THE_BAR = {  # within 80 columns
    "train/loss": ("loss", ".4f"),
    "val/acc": ("acc", ".2%"),
    "train/images_per_second": ("images/s", ",.0f"),
}
BAR_SECONDS = 0.5  # between two readings of the metrics
MIB = 2**20
PROCESS_STATUS = Path("/proc/self/status")


class Progress(TQDMProgressBar):
    """A live bar on a terminal, and one line an epoch on terminals and in files.

    It reads the metrics itself, now and then: Lightning reads those logged with `prog_bar=True`
    after every batch, bar or no bar, and each reading waits for the GPU.
    """

    BAR_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"

    def __init__(self):
        super().__init__(refresh_rate=1 if sys.stdout.isatty() else 0)
        self._metrics: dict[str, str] = {}
        self._read = float("-inf")
        self._validated = False

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, str]:
        if time.monotonic() - self._read > BAR_SECONDS:
            self._metrics = _formatted(trainer, BESIDE_THE_BAR)
            self._read = time.monotonic()
        return self._metrics

    def on_train_epoch_start(self, trainer: Trainer, *args) -> None:
        super().on_train_epoch_start(trainer, *args)
        self.train_progress_bar.set_description(_epoch(trainer))
        self._validated = False

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validated = True
        self._read = float("-inf")
        super().on_validation_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        old = () if self._validated else ("val/loss", "val/acc")
        current = {metric: how for metric, how in IN_LINES.items() if metric not in old}
        shown = _formatted(trainer, current)  # in every process: epoch means are gathered
        if trainer.is_global_zero:
            values = ", ".join(f"{label} {value}" for label, value in shown.items())
            self.train_progress_bar.write(f"{_epoch(trainer)}: {values}")
            sys.stdout.flush()


class Throughput(Callback):
    """Logs `train/images_per_second` of all processes and `train/seconds` of training.

    Images/s every `log_every_n_steps`; cumulative seconds with each validation and epoch, restored
    on resume. Validation and saving count in neither, nor in images/s the first batch after each
    such pause (workers start, graphs compile). Lightning's ThroughputMonitor waits for the GPU
    after every batch; this clock does so only when it is read.
    """

    def __init__(self):
        self._images = 0
        self._window, self._trained = _Stopwatch(), _Stopwatch()  # of those images; of the run
        self._step = 0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._window.stop(trainer)
        self._trained.start(trainer)

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        self._trained.start(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._window.since is None:
            self._window.start(trainer)
            return
        self._images += len(batch[0])
        every, step = trainer.log_every_n_steps, trainer.global_step
        if every and step % every == 0 and step != self._step:
            self._window.stop(trainer)
            rate = self._images * trainer.world_size / self._window.seconds
            pl_module.log("train/images_per_second", torch.tensor(rate))  # on the CPU: no waiting
            self._images, self._step, self._window = 0, step, _Stopwatch()
            self._window.start(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._window.stop(trainer)
        self._trained.stop(trainer)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            pl_module.log("train/seconds", self._trained.seconds, sync_dist=True)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._trained.stop(trainer)
        pl_module.log("train/seconds", self._trained.seconds, sync_dist=True)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        if isinstance(exception, KeyboardInterrupt | SIGTERMException):  # a checkpoint follows
            self._trained.stop(trainer)

    def state_dict(self) -> dict[str, float]:
        return {"seconds": self._trained.seconds}

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        self._trained.seconds = state_dict["seconds"]


class _Stopwatch:
    """Seconds between starts and stops; starting a running one, or stopping another, is nothing."""

    def __init__(self):
        self.seconds = 0.0
        self.since: float | None = None  # while it runs

    def start(self, trainer: Trainer) -> None:
        if self.since is None:
            self.since = _now(trainer)

    def stop(self, trainer: Trainer) -> None:
        if self.since is not None:
            self.seconds += _now(trainer) - self.since
            self.since = None


class PeakMemory(Callback):
    """Logs `train/peak_mib` with the metrics of an epoch: MiB of the process that took most.

    On CUDA what torch had allocated at most since training began; elsewhere the whole process, with
    libraries and images, since its start. Nothing is logged where the system does not count it.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if pl_module.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(pl_module.device)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if (peak := peak_mib(pl_module.device)) is not None:
            pl_module.log("train/peak_mib", peak, sync_dist=True, reduce_fx="max")


def peak_mib(device: torch.device) -> float | None:
    """See `PeakMemory`; None where it is not counted, as in some Linux sandboxes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MIB
    status = PROCESS_STATUS.read_text(encoding="utf-8") if PROCESS_STATUS.exists() else ""
    kib = re.search(r"^VmHWM:\s*(\d+)", status, re.MULTILINE)
    return int(kib[1]) / 1024 if kib else None


def _formatted(trainer: Trainer, metrics: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    found = trainer.callback_metrics
    shown = [(found[name].item(), *how) for name, how in metrics.items() if name in found]
    return {label: format(value, form) for value, label, form in shown}


def _epoch(trainer: Trainer) -> str:
    of = f"/{trainer.max_epochs}" if (trainer.max_epochs or -1) > 0 else ""
    return f"epoch {trainer.current_epoch + 1}{of}"


def _now(trainer: Trainer) -> float:
    device = trainer.strategy.root_device
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()
