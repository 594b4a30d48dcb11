"""From a config to the parts of a run, clashes between parts found before any data is read."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from pytorch_lightning import Trainer
from torch import nn

from vitrail.attention.backends import Backend, Request, resolve
from vitrail.data.module import ImageData
from vitrail.model import ViT
from vitrail.tracking.loggers import Recipe
from vitrail.training.classifier import Classifier


@dataclass(frozen=True)
class LayerPlan:
    """One attention layer before the run: what it will ask, and the backend that will answer."""

    request: Request
    backend: Backend


def device_of(accelerator: str) -> torch.device:
    """The device that Lightning's accelerator name means here, or ValueError when there is none."""
    present = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    here = "cpu" if present is None else present.type
    wanted = {"auto": here, "gpu": "cuda" if here == "cpu" else here}.get(accelerator, accelerator)
    if wanted not in ("cpu", here):
        raise ValueError(
            f"trainer.accelerator={accelerator} needs a {wanted} device and this machine has none; "
            "use trainer=cpu"
        )
    return torch.device(wanted)


def attention_dtype(precision: str) -> torch.dtype:
    """The dtype that q, k and v have under a Lightning precision such as `bf16-mixed`."""
    if precision.startswith("64"):
        return torch.float64
    if precision.startswith("32"):
        return torch.float32
    return torch.float16 if precision.startswith("16") or "float16" in precision else torch.bfloat16


def build_data(config: DictConfig) -> ImageData:
    """The data of `config.data`; nothing is read yet."""
    return instantiate(config.data, _convert_="all")


def build_classifier(config: DictConfig, network: nn.Module, classes: Sequence[str]) -> Classifier:
    """The network with what `config.classifier` and `config.optim` say of its training."""
    # Handed over as keywords of instantiate, objects would be taken for configs.
    build = instantiate(config.classifier, _partial_=True, _convert_="all")
    return build(network=network, classes=classes, optim=instantiate(config.optim, _convert_="all"))


def build_trainer(config: DictConfig, **parts) -> Trainer:
    """Lightning's Trainer of `config.trainer` with the parts that no config can name."""
    return instantiate(config.trainer, _partial_=True, _convert_="all")(**parts)


def build_loggers(config: DictConfig) -> dict[str, Recipe]:
    """The recipes of `config.logger` by name."""
    return instantiate(config.logger, _convert_="all")


def build_network(config: DictConfig, num_classes: int) -> nn.Module:
    """The model of `config.model` for so many classes."""
    return instantiate(config.model, num_classes=num_classes, _convert_="all")


def outline(config: DictConfig) -> nn.Module:
    """The model on the meta device, without weights: sizes that do not fit are refused here."""
    with torch.device("meta"):
        return instantiate(
            config.model,
            num_classes=config.model.num_classes or 1,
            pretrained=None,
            _convert_="all",
        )


def plan(
    network: nn.Module,
    *,
    batch: int,
    image_size: tuple[int, int],
    device: torch.device,
    dtype: torch.dtype,
    padded: bool,
    training: bool,
) -> dict[str, LayerPlan]:
    """Each attention layer's request and backend by name; raises `Refused` for what cannot run.

    Empty for a model that is not ours: its attention is its own, and the receipt says so.
    """
    if not isinstance(network, ViT):
        if padded:
            raise ValueError(
                "data.resize=native pads images and model=timm takes no padding; use a vit model"
            )
        return {}
    requests = network.requests(
        batch=batch,
        image_size=image_size,
        device=device,
        dtype=dtype,
        padded=padded,
        training=training,
    )
    backends = {f"blocks.{i}.attn": block.attn.backend for i, block in enumerate(network.blocks)}
    return {
        layer: LayerPlan(request, resolve(request, backends[layer]))
        for layer, request in requests.items()
    }
