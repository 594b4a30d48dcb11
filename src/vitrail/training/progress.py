"""What a person sees of a run while it goes on."""

import sys
import time
from collections.abc import Mapping

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import TQDMProgressBar

FORMS = {  # of every metric that is shown
    "train/loss": "{:.4f}",
    "train/epoch_loss": "{:.4f}",
    "train/acc": "{:.2%}",
    "val/loss": "{:.4f}",
    "val/acc": "{:.2%}",
    "train/images_per_second": "{:,.0f}",
}
IN_LINES = {
    "train/epoch_loss": "loss",
    "train/acc": "train accuracy",
    "val/loss": "val loss",
    "val/acc": "val accuracy",
    "train/images_per_second": "images/s",
}
BESIDE_THE_BAR = {  # within 80 columns
    "train/loss": "loss",
    "val/acc": "acc",
    "train/images_per_second": "images/s",
}
SECONDS = 0.5  # between two readings for the bar


class Progress(TQDMProgressBar):
    """A live bar on a terminal, and on terminals and in files alike one line an epoch.

    It reads the metrics itself, now and then: those logged with `prog_bar=True` Lightning reads
    after every batch, bar or no bar, and each reading waits for the GPU.
    """

    BAR_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"

    def __init__(self):
        super().__init__(refresh_rate=1 if sys.stdout.isatty() else 0)
        self._metrics: dict[str, str] = {}
        self._read = float("-inf")
        self._validated = False

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, str]:
        if time.monotonic() - self._read > SECONDS:
            self._metrics = _shown(trainer, BESIDE_THE_BAR)
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
        names = {metric: name for metric, name in IN_LINES.items() if metric not in old}
        shown = _shown(trainer, names)  # in every process: they gather an epoch's mean together
        if trainer.is_global_zero:
            values = ", ".join(f"{name} {value}" for name, value in shown.items())
            self.train_progress_bar.write(f"{_epoch(trainer)}: {values}")
            sys.stdout.flush()


def _shown(trainer: Trainer, names: Mapping[str, str]) -> dict[str, str]:
    metrics = trainer.callback_metrics
    return {
        name: FORMS[metric].format(metrics[metric].item())
        for metric, name in names.items()
        if metric in metrics
    }


def _epoch(trainer: Trainer) -> str:
    of = f"/{trainer.max_epochs}" if (trainer.max_epochs or -1) > 0 else ""
    return f"epoch {trainer.current_epoch + 1}{of}"
