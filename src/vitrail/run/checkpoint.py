"""A checkpoint that is enough: read back, held against a model, gone on from."""

import pickle
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from vitrail.errors import UserError

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
        """The run's own config with this command's overrides, whose values lie in `composed`.

        overrides: as typed; one that names a config group brings that whole group, but for
        trainer, which brings where to run and leaves how long and how as it was. Raises UserError
        for an experiment, which would replace the config that is to go on, and for what
        the optimizer's restored state would override in turn.
        """
        config = OmegaConf.create(self.description["recipe"])
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
            raise UserError(
                f"ckpt_path={self.path} does not fit the model: {'; '.join(differences)}; "
                "use a checkpoint of this model and image size"
            )


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
    unreadable = UserError(
        f"ckpt_path={ckpt_path} cannot be read: it is cut short or of another program; use another "
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
    return Checkpoint(
        path=path.resolve(),
        description=description,
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
