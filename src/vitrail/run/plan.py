"""From a config to the parts of a run, clashes between parts found before any data is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig
from pytorch_lightning import Trainer, seed_everything
from torch import nn

from vitrail.attention.selection.layers import LayerPlan, Rules, plan_layers
from vitrail.attention.selection.requests import requests_of
from vitrail.configuration import check_seed, read_switches
from vitrail.data.module import ImageData
from vitrail.errors import UserError
from vitrail.model import ViT
from vitrail.training.classifier import Classifier
from vitrail.training.precision import Hardware, attention_dtype, choose


def device_of(accelerator: str) -> torch.device:
    """The device that Lightning's accelerator name means here, or UserError when there is none."""
    present = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    here = "cpu" if present is None else present.type
    wanted = {"auto": here, "gpu": "cuda" if here == "cpu" else here}.get(accelerator, accelerator)
    if wanted not in ("cpu", here):
        raise UserError(
            f"trainer.accelerator={accelerator} needs a {wanted} device and this machine has none; "
            "use trainer=cpu"
        )
    return torch.device(wanted)


def build(node: DictConfig, **settings: Any) -> Any:
    """What a `_target_` node describes.

    UserError and OSError come as the constructor raises them, a lacking argument as UserError, any
    other error wrapped by Hydra, with the config's key.
    """
    try:
        return instantiate(node, _convert_="all", **settings)
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, UserError | OSError):
            raise cause from None
        if isinstance(cause, TypeError) and cause.__traceback__.tb_next is None:  # of the call
            raise UserError(str(cause)) from None
        raise


def build_classifier(config: DictConfig, network: nn.Module, classes: Sequence[str]) -> Classifier:
    """The network with what `config.classifier` and `config.optim` say of its training."""
    # Handed over as keywords of instantiate, objects would be taken for configs.
    classifier = build(config.classifier, _partial_=True)
    return classifier(network=network, classes=classes, optim=build(config.optim))


def build_trainer(config: DictConfig, **parts) -> Trainer:
    """Lightning's Trainer of `config.trainer` with the parts that no config can name."""
    return build(config.trainer, _partial_=True)(**parts)


def build_network(config: DictConfig, num_classes: int, *, pretrained: bool) -> nn.Module:
    """The model of `config.model` for so many classes.

    pretrained: whether to begin from the weights that the config may name.
    """
    instead = {"pretrained": None} if "pretrained" in config.model and not pretrained else {}
    return build(config.model, num_classes=num_classes, **instead)


@dataclass(frozen=True)
class Plan:
    """What is decided before any data is read, see `of`."""

    precision: str  # Lightning's name of it
    why_precision: str  # half a sentence
    data: ImageData
    meta_model: nn.Module  # on the meta device, without weights
    layers: dict[str, LayerPlan]  # by name; empty for a model that brings its own attention

    @classmethod
    def of(
        cls, config: DictConfig, *, training: bool, saved: Mapping[str, str] | None = None
    ) -> "Plan":
        """Seed everything, fit the parts together, choose the backends and prove them.

        Args:
            config: composed from train.yaml, or a checkpoint's own.
            training: whether gradients are computed.
            saved: the checkpoint's backends, by layer.

        Raises:
            UserError: the first clash between parts.
        """
        read_switches(config)
        check_seed(config.seed)
        seed_everything(config.seed, workers=True, verbose=False)
        device = device_of(config.trainer.accelerator)
        precision, why = choose(config.precision, Hardware.of(device))
        data: ImageData = build(config.data)
        with torch.device("meta"):
            network = build_network(config, config.model.num_classes or 1, pretrained=False)
        padded = config.data.resize == "native"
        if padded:
            check_padding(config, network)
        layers = {}
        if isinstance(network, ViT):
            images = torch.empty(data.batch_size, 3, *data.image_size, device="meta")
            valid = torch.ones_like(images[:, 0], dtype=torch.bool) if padded else None
            dtype = attention_dtype(precision)
            asked = requests_of(
                network, images, valid, device=device, dtype=dtype, training=training
            )
            own = {"gate": config.gate, "deterministic": config.deterministic}
            layers = plan_layers(asked, network, Rules(config.backend, **own, saved=saved or {}))
        return cls(precision, why, data, network, layers)

    @classmethod
    def asking(cls, config: DictConfig, *, training: bool) -> "Plan":
        """What the layers ask for and no more: no backend is chosen, measured or proved."""
        config = config.copy()
        config.backend, config.gate = "reference", False
        return cls.of(config, training=training)

    def check_backend(self, name: str) -> None:
        """Raise UserError where somebody names a backend and no layer would ask it."""
        if not self.layers:
            raise UserError(
                f"backend={name} has no use, because {type(self.meta_model).__name__} brings its "
                "own attention; leave it out, or use a vit model"
            )


def check_padding(config: DictConfig, network: nn.Module) -> None:
    """Raise UserError where images that are padded together meet parts that cannot take them."""
    if not isinstance(network, ViT):
        raise UserError(
            "data.resize=native pads images, and a model of type "
            f"{type(network).__name__} takes no padding; use a vit model"
        )
    if config.classifier.mixup or config.classifier.cutmix:
        raise UserError(
            "data.resize=native pads images and mixing needs images of one size; use "
            "classifier.mixup=0 classifier.cutmix=0, or data.resize=crop"
        )
    patch = lcm(*network.patch_embed.patch_size)
    if config.data.pad_to % patch:
        raise UserError(
            f"data.pad_to={config.data.pad_to} leaves parts of patches at the edge of a padded "
            f"image; use data.pad_to={patch}, a multiple of model.patch_size"
        )
