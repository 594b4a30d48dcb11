"""Checkpoints as a run writes them: best and last, each whole or not at all, describing itself."""

import io
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins import TorchCheckpointIO
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.trainer.states import TrainerFn
from pytorch_lightning.utilities.exceptions import SIGTERMException
from torch import Tensor

from vitrail.errors import UserError
from vitrail.run.folder import CHECKPOINTS
from vitrail.tracking.atomic import replacing


class WholeFiles(TorchCheckpointIO):
    """Writes a checkpoint beside its place and renames it.

    Lightning's way goes through the system's folder for temporary files: where that is another
    file system, a full disk or a kill leaves half a checkpoint under the final name.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        content = io.BytesIO()  # written straight to a file, torch hides the system's error
        torch.save(checkpoint, content)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with replacing(Path(path)) as draft:
            draft.write_bytes(content.getbuffer())


class BestAndLast(ModelCheckpoint):
    """best.ckpt (highest val/acc, the latest of equals) and last.ckpt (the last step there was).

    Without validation best.ckpt is the latest. Lightning's own last.ckpt is written only when a
    best one is. When a person or the system stops the run, last.ckpt is written at the step that
    was reached.
    """

    def __init__(self, run_dir: Path, *, validated: bool):
        super().__init__(
            run_dir / CHECKPOINTS,
            filename="best",
            monitor="val/acc" if validated else None,
            mode="max",
            enable_version_counter=False,
        )
        self.last = run_dir / CHECKPOINTS / "last.ckpt"
        self._last_step: int | None = None  # that last.ckpt holds
        self._validated_step: int | None = None

    @property
    def best(self) -> Path:
        """The checkpoint to evaluate: last.ckpt where no validation has come to its end.

        Raises UserError when nothing was trained.
        """
        path = Path(self.best_model_path or self.last)
        if not path.is_file():
            raise UserError(
                "no step was taken, so there is no checkpoint; raise trainer.max_epochs or "
                "trainer.max_steps"
            )
        return path

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        with warnings.catch_warnings():
            # A run that goes on finds its own checkpoints there.
            warnings.filterwarnings("ignore", "Checkpoint directory .* exists and is not empty")
            super().setup(trainer, pl_module, stage)

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        """Whether this is the best yet; of equals the later one, since small splits tie early."""
        if current is None or not self.best_k_models:
            return super().check_monitor_top_k(trainer, current)
        best = self.best_k_models[self.kth_best_model_path]
        return trainer.strategy.reduce_boolean_decision(bool(current >= best))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_end(trainer, pl_module)
        self._validated_step = trainer.global_step
        # At the end of an epoch the end of validation is not yet the end of the epoch.
        if not trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            self._write_last(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Training may end within an epoch, and val/acc still be that of an earlier step.
        if self.monitor is None or self._validated_step == trainer.global_step:
            super().on_train_epoch_end(trainer, pl_module)
        self._write_last(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write_last(trainer)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        if isinstance(exception, KeyboardInterrupt | SIGTERMException):
            if trainer.validating:
                # Or the resumed run would leave this validation out: Lightning goes on in the
                # middle of one, after the batches that are done, and here none is.
                progress = trainer.fit_loop.epoch_loop.val_loop.batch_progress
                for counts in (progress.total, progress.current):
                    counts.ready = counts.started = 1
                    counts.processed = counts.completed = 0
            self._write_last(trainer)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the best so far where it lies here, as in a folder that was renamed."""
        here = Path(self.dirpath)
        if not (here / "best.ckpt").is_file():
            return

        def moved(path: str) -> str:
            return str(here / Path(path).name) if path else path

        best = {moved(path): score for path, score in state_dict["best_k_models"].items()}
        paths = {
            name: moved(state_dict[name])
            for name in ("best_model_path", "kth_best_model_path", "last_model_path")
        }
        super().load_state_dict(
            {**state_dict, **paths, "best_k_models": best, "dirpath": self.dirpath}
        )

    def _write_last(self, trainer: Trainer) -> None:
        fitting = trainer.state.fn is TrainerFn.FITTING and not trainer.sanity_checking
        if fitting and trainer.global_step not in (0, self._last_step):
            self.last_model_path = str(self.last)  # for loggers that upload it
            trainer.save_checkpoint(self.last)
            self._last_step = trainer.global_step


class SelfDescription(Callback):
    """Puts `description` (plain containers alone) into every checkpoint as its hyper-parameters.

    Keys: vitrail (the version), config (resolved), recipe (the same with its interpolations, so
    that a resumed run's overrides reach what follows from them), classes, mean, std, image_size,
    precision, backends (layer -> name), environment, wandb_id.
    """

    def __init__(self, description: dict[str, Any]):
        self.description = description

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["hyper_parameters"] = self.description
