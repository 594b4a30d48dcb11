"""Checkpoints that are enough: what is written into them, and how they are read back."""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning import Callback
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.utilities.exceptions import SIGTERMException
from torch import Tensor, nn

from vitrail.run_folder import CHECKPOINTS

KEY = "vitrail"  # marks a checkpoint as ours; holds the version that wrote it


class BestAndLast(ModelCheckpoint):
    """best.ckpt (highest val/acc, or the latest where nothing validates) and last.ckpt.

    When a person or the system stops the run, last.ckpt is written at the step that was reached.
    """

    def __init__(self, run_dir: Path, *, validated: bool):
        super().__init__(
            run_dir / CHECKPOINTS,
            filename="best",
            monitor="val/acc" if validated else None,
            mode="max",
            save_last=True,
            enable_version_counter=False,
        )

    @property
    def last(self) -> Path:
        return Path(self.dirpath) / "last.ckpt"

    def on_exception(self, trainer, pl_module, exception):
        if isinstance(exception, KeyboardInterrupt | SIGTERMException) and trainer.global_step > 0:
            trainer.save_checkpoint(self.last)


class SelfDescription(Callback):
    """Puts `description` (plain containers alone) into every checkpoint as its hyper-parameters.

    Keys: vitrail (the version), config (resolved), recipe (the same with its interpolations, so
    that a resumed run's overrides reach what follows from them), classes, mean, std, image_size,
    precision, backends (layer -> name), environment, wandb_id.
    """

    def __init__(self, description: dict[str, Any]):
        self.description = description

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        checkpoint["hyper_parameters"] = self.description


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
        """The run's own config with this command's overrides, whose values lie in `composed`.

        overrides: as typed; one that names a config group brings that whole group. Raises
        ValueError for an experiment, which would replace the config that is to go on.
        """
        config = OmegaConf.create(self.description["recipe"])
        for override in overrides:
            key = override.lstrip("+~").partition("=")[0].partition("@")[0]
            if key == "experiment":
                raise ValueError(
                    f"{override} cannot be combined with ckpt_path={self.path}, which brings its "
                    "own config; leave it out, or start a new run without ckpt_path"
                )
            if override.startswith("~"):
                raise ValueError(
                    f"{override} cannot be applied to a run that goes on; leave it out"
                )
            value = composed[key] if key in choices else OmegaConf.select(composed, key)
            OmegaConf.update(config, key, value, merge=False, force_add=True)
        return config

    def load_into(self, network: nn.Module) -> None:
        """Copy the weights into `network`; ValueError lists every name and shape that differs."""
        own = network.state_dict()
        missing = sorted(own.keys() - self.weights.keys())
        unknown = sorted(self.weights.keys() - own.keys())
        shapes = [
            f"{name} {tuple(self.weights[name].shape)} instead of {tuple(own[name].shape)}"
            for name in sorted(own.keys() & self.weights.keys())
            if own[name].shape != self.weights[name].shape
        ]
        differences = [
            f"{kind} {_some(names)}"
            for kind, names in (("missing", missing), ("unknown", unknown), ("shape", shapes))
            if names
        ]
        if differences:
            raise ValueError(
                f"ckpt_path={self.path} does not fit the model: {'; '.join(differences)}; "
                "use a checkpoint of this model"
            )
        network.load_state_dict(self.weights, strict=True)


def read(ckpt_path: str) -> Checkpoint:
    """The checkpoint at that path, loaded with `weights_only=True` onto the CPU.

    Raises FileNotFoundError when there is none, ValueError when it cannot be read or was not
    written by vitrail.
    """
    path = Path(ckpt_path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(
            f"ckpt_path={ckpt_path} is no file; use the path that training printed"
        )
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"ckpt_path={ckpt_path} cannot be read ({reason[:100]}); it is cut short or no "
            "checkpoint: use another one of the run, such as last.ckpt"
        ) from error
    if not isinstance(content, dict) or KEY not in content.get("hyper_parameters", {}):
        raise ValueError(
            f"ckpt_path={ckpt_path} was not written by vitrail (it does not describe itself); "
            "weights of other origin go into model.pretrained="
        )
    return Checkpoint(
        path=path.resolve(),
        description=content["hyper_parameters"],
        weights={
            name.removeprefix("network."): value
            for name, value in content["state_dict"].items()
            if name.startswith("network.")
        },
        epoch=content["epoch"],
        step=content["global_step"],
        averaged="averaging_state" in content,
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more
