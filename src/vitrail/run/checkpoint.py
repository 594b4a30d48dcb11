"""A checkpoint that is enough: written whole, describing itself, read back, gone on from."""

import io
import pickle
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins import TorchCheckpointIO
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.trainer.states import TrainerFn
from pytorch_lightning.utilities.exceptions import SIGTERMException
from torch import Tensor, nn

import vitrail
from vitrail.data.classes import some
from vitrail.errors import UserError
from vitrail.startup import CHECKPOINTS, folder_of_run
from vitrail.tracking import environment
from vitrail.tracking.atomic import replacing

KEY = "vitrail"  # marks a checkpoint as ours; holds the version that wrote it
PLACE = ("accelerator", "devices", "num_nodes", "strategy")  # of a trainer: where it runs


@dataclass(frozen=True)
class Checkpoint:
    """A file that `read` has checked; `weights` are the averaged ones where the run kept an EMA."""

    path: Path
    description: dict[str, Any]
    weights: dict[str, Tensor]
    epoch: int
    step: int
    averaged: bool

    def continued(
        self, composed: DictConfig, overrides: Sequence[str], choices: Mapping[str, str | None]
    ) -> DictConfig:
        """The run's own config with this command's overrides.

        Args:
            composed: this command's config, which holds the overrides' values.
            overrides: as typed; one that names a config group brings that whole group, but for
                trainer, which brings where to run and leaves how long and how as it was.
            choices: this command's choice in each config group.

        Raises:
            UserError: an override that a run cannot go on with.
        """
        config = OmegaConf.create(self.description["unresolved_config"])
        for override in overrides:
            key = override.lstrip("+~").partition("=")[0].partition("@")[0]
            if key == "experiment":
                raise UserError(
                    f"{override} cannot be combined with ckpt_path={self.path}, which brings its "
                    "own config; leave it out, or start a new run without ckpt_path"
                )
            if f"{key}.".startswith("optim.") and not key.startswith("optim.schedule"):
                raise UserError(
                    f"{override} cannot be applied to a run that goes on with its own optimizer; "
                    f"leave it out, or start a new run with model.pretrained={self.path}"
                )
            if override.startswith("~"):
                raise UserError(f"{override} cannot be applied to a run that goes on; leave it out")
            value = composed[key] if key in choices else OmegaConf.select(composed, key)
            if key == "trainer" and key in choices:
                value = OmegaConf.merge(config.trainer, {name: value[name] for name in PLACE})
            OmegaConf.update(config, key, value, merge=False, force_add=True)
        if self.averaged and config.ema_decay is None:
            raise UserError(
                f"ema_decay=null cannot be applied to ckpt_path={self.path}, whose weights are "
                "averaged; leave it out"
            )
        return config

    def check(self, network: nn.Module) -> None:
        """Raise UserError that lists the weights by names and shapes that differ, if any do."""
        own = {name: tuple(value.shape) for name, value in network.state_dict().items()}
        found = {name: tuple(value.shape) for name, value in self.weights.items()}
        shapes = [
            f"{name} {found[name]} instead of {shape}"
            for name, shape in own.items()
            if found.get(name, shape) != shape
        ]
        kinds = {
            "missing": sorted(own.keys() - found.keys()),
            "unknown": sorted(found.keys() - own.keys()),
            "shape": sorted(shapes),
        }
        differences = [f"{kind} {some(names, 4)}" for kind, names in kinds.items() if names]
        if differences:
            raise UserError(
                f"ckpt_path={self.path} does not fit the model: {'; '.join(differences)}; "
                "use a checkpoint of this model and image size"
            )


def read(ckpt_path: str) -> Checkpoint:
    """The checkpoint at that path, loaded with `weights_only=True` onto the CPU.

    Raises UserError where there is none, it cannot be read, or it was not written by vitrail or by
    a version whose configs and names were others.
    """
    folder_of_run(ckpt_path)  # raises where no file is there
    path = Path(ckpt_path).expanduser()
    unreadable = UserError(
        f"ckpt_path={ckpt_path} cannot be read: it is incomplete or not a checkpoint; use another "
        "one of the run, such as last.ckpt"
    )
    # Asked first, because torch reads a file of any other kind as the opcodes of a pickle.
    if not zipfile.is_zipfile(path):
        raise unreadable
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, LookupError) as error:
        raise unreadable from error
    description = content.get("hyper_parameters") if isinstance(content, dict) else None
    if not isinstance(description, dict) or KEY not in description:
        raise UserError(
            f"ckpt_path={ckpt_path} was not written by vitrail (it does not describe itself); "
            "weights of other origin go into model.pretrained="
        )
    if "unresolved_config" not in description:
        raise UserError(
            f"ckpt_path={ckpt_path} was written by vitrail {description[KEY]}, whose configs "
            f"{vitrail.__version__} does not read; use that version, or take the weights alone: "
            f"model.pretrained={ckpt_path}"
        )
    of_network = {
        name.removeprefix("network."): value
        for name, value in content["state_dict"].items()
        if name.startswith("network.")
    }
    averaged = "averaging_state" in content
    place = content["epoch"], content["global_step"]
    return Checkpoint(path.resolve(), description, of_network, *place, averaged)


class WholeFiles(TorchCheckpointIO):
    """Writes a checkpoint beside its place and renames it.

    Lightning's way goes through the system's temporary folder: where that is another file system,
    a full disk or a kill leaves half a checkpoint under the final name.
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
    best one is; this one also where a person or the system stops the run.
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
        if not (Path(self.dirpath) / "best.ckpt").is_file():
            return

        def moved(value: Any) -> Any:
            there = isinstance(value, str)
            return value.replace(state_dict["dirpath"], self.dirpath) if there else value

        best = {moved(path): score for path, score in state_dict["best_k_models"].items()}
        here = {name: moved(value) for name, value in state_dict.items()}
        super().load_state_dict(here | {"best_k_models": best})

    def _write_last(self, trainer: Trainer) -> None:
        fitting = trainer.state.fn is TrainerFn.FITTING and not trainer.sanity_checking
        if fitting and trainer.global_step not in (0, self._last_step):
            self.last_model_path = str(self.last)  # for loggers that upload it
            trainer.save_checkpoint(self.last)
            self._last_step = trainer.global_step


class SelfDescription(Callback):
    """Puts what a checkpoint must know into it as hyper-parameters, in plain containers alone.

    Keys: vitrail (the version that wrote it), config (resolved), unresolved_config (where a resumed
    run's overrides reach what follows from them), environment, and the facts: classes, mean, std,
    image_size, precision, backends (layer -> name), wandb_id.
    """

    def __init__(self, config: DictConfig, **facts: Any):
        self.description = {
            KEY: vitrail.__version__,
            "config": OmegaConf.to_container(config, resolve=True),
            "unresolved_config": OmegaConf.to_container(config, resolve=False),
            "environment": environment.describe(),
            **facts,
        }

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["hyper_parameters"] = self.description
