"""What a person sees of a run while it goes on."""

import sys
import time

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import TQDMProgressBar

SHOWN = {  # metric -> its name on the screen, its form
    "train/loss": ("loss", "{:.4f}"),
    "train/acc": ("train accuracy", "{:.2%}"),
    "val/loss": ("val loss", "{:.4f}"),
    "val/acc": ("val accuracy", "{:.2%}"),
    "train/images_per_second": ("images/s", "{:,.0f}"),
}
SECONDS = 0.5  # between two readings of the metrics


class Progress(TQDMProgressBar):
    """A live bar on a terminal, and on terminals and in files alike one line an epoch.

    It reads the metrics itself, now and then: those logged with `prog_bar=True` Lightning reads
    after every batch, bar or no bar, and each reading waits for the GPU.
    """

    def __init__(self):
        super().__init__(refresh_rate=1 if sys.stdout.isatty() else 0)
        self._metrics: dict[str, str] = {}
        self._read = float("-inf")
        self._validated = False

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, str]:
        if time.monotonic() - self._read > SECONDS:
            self._metrics = _shown(trainer)
            self._read = time.monotonic()
        return self._metrics

    def on_train_epoch_start(self, trainer: Trainer, *args) -> None:
        super().on_train_epoch_start(trainer, *args)
        self._validated = False

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validated = True
        self._read = float("-inf")
        super().on_validation_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        metrics = _shown(trainer, self._validated)  # in every process: they gather it together
        if trainer.is_global_zero:
            of = f"/{trainer.max_epochs}" if (trainer.max_epochs or -1) > 0 else ""
            values = ", ".join(f"{name} {value}" for name, value in metrics.items())
            self.train_progress_bar.write(f"epoch {trainer.current_epoch + 1}{of}: {values}")
            sys.stdout.flush()


def _shown(trainer: Trainer, validated: bool = True) -> dict[str, str]:
    metrics = trainer.callback_metrics
    return {
        name: form.format(metrics[metric].item())
        for metric, (name, form) in SHOWN.items()
        if metric in metrics and (validated or not metric.startswith("val/"))
    }
