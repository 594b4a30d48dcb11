"""An optimizer of timm and its schedule, from a config."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

import torch
from timm import optim
from timm.models import group_parameters
from timm.utils import unwrap_model
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from vitrail.errors import UserError
from vitrail.training.schedule import WarmupCosine

COLOURS = 3  # channels of an image


@dataclass(frozen=True, kw_only=True)
class Optim:
    """How a model is optimized; names no parameter, so one config serves every model.

    Raises UserError for a name, an option or a value that does not exist.

    Args:
        name: an optimizer of timm, see `timm.optim.list_optimizers()`.
        lr: the peak rate.
        weight_decay: not of biases, 1-D tensors and what the model's `no_weight_decay()` names.
        layer_decay: a layer's rate is this times the rate of the layer above; None: one rate.
        options: further arguments of the optimizer, such as betas.
        schedule: of the rate.
    """

    name: str
    lr: float
    weight_decay: float
    layer_decay: float | None
    options: Mapping[str, Any]
    schedule: WarmupCosine

    def __post_init__(self):
        _check_name(self.name)
        known = inspect.signature(_class_of(self.name)).parameters.keys()
        known -= {"params", "lr", "weight_decay"}
        for option in sorted(self.options.keys() - known):
            near = get_close_matches(option, known) or sorted(known)
            raise UserError(
                f"optim.options.{option} is not an argument of {self.name}; use "
                f"{', '.join(near)}, or leave it out: ~optim.options.{option}"
            )
        if self.lr <= 0:
            raise UserError(f"optim.lr must be > 0, got {self.lr}")
        if self.weight_decay < 0:
            raise UserError(f"optim.weight_decay must be >= 0, got {self.weight_decay}")
        if self.layer_decay is not None and not 0 < self.layer_decay <= 1:
            raise UserError(f"optim.layer_decay must be in (0, 1] or null, got {self.layer_decay}")

    def build(
        self,
        model: nn.Module,
        total_steps: float,
        *,
        elapsed: Callable[[], float] | None = None,
        fused: bool = True,
    ) -> tuple[Optimizer, LambdaLR]:
        """The optimizer of `model` and its schedule.

        Args:
            model: may be wrapped.
            total_steps, elapsed: see `WarmupCosine.attach`.
            fused: use torch's fused kernels where the optimizer has them. A gradient scaler forbids
                them where gradients are clipped.

        Raises:
            UserError: a training without end, or layer decay for a model without ordered layers.
        """
        options = {"fused": True} if fused and self._has_fused(model) else {}
        options |= {"lr": self.lr, "weight_decay": self.weight_decay, **self.options}
        optimizer = optim.create_optimizer_v2(self.groups(model), opt=self.name, **options)
        return optimizer, self.schedule.attach(optimizer, total_steps, elapsed)

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Parameter groups of `model`: every trained parameter once, with its `lr` and decay.

        Names are read from the innermost module, so compiling, DDP and averaging change nothing.
        """
        model = unwrap_model(model)
        kept = {name for name, _ in model.named_parameters() if name.endswith("bias")}
        kept |= model.no_weight_decay() if hasattr(model, "no_weight_decay") else set()
        how = {"weight_decay": self.weight_decay, "no_weight_decay_list": kept}
        if issubclass(_class_of(self.name), optim.Muon):
            how["fallback_list"] = kept | _ends(model)
        if self.layer_decay is None:
            groups = optim.param_groups_weight_decay(model, **how)
        elif hasattr(model, "group_matcher"):
            groups = optim.param_groups_layer_decay(model, layer_decay=self.layer_decay, **how)
        else:
            raise UserError(
                f"optim.layer_decay={self.layer_decay} needs a model that orders its layers "
                f"(group_matcher), and {type(model).__name__} does not; use optim.layer_decay=null"
            )
        for group in groups:
            # timm leaves the scale for its own schedulers to apply; torch's start from `lr`.
            group["lr"] = self.lr * group.pop("lr_scale", 1.0)
        return groups

    def _has_fused(self, model: nn.Module) -> bool:
        # AdamW is an Adam; torch's fused SGD takes no shards.
        adam = issubclass(_class_of(self.name), torch.optim.Adam)
        chosen = self.options.keys() & {"fused", "foreach", "differentiable"}
        devices = {parameter.device.type for parameter in model.parameters()}
        return adam and not chosen and devices <= {"cpu", "cuda", "mps"}


def _ends(model: nn.Module) -> set[str]:
    """Parameters of the embedding and of the head, which Muon leaves to its AdamW (Jordan 2024)."""
    # Their rows are single features and classes, not directions to be made orthogonal. Of a stem of
    # several convolutions only the one that reads pixels is an embedding.
    if not hasattr(model, "group_matcher"):
        return set()
    depths = group_parameters(model, model.group_matcher(), reverse=True)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    hidden = {name for name, shape in shapes.items() if len(shape) == 4 and shape[1] > COLOURS}
    ends = {0, max(depths.values())}
    return {name for name, depth in depths.items() if depth in ends} - hidden


def _class_of(name: str) -> type[Optimizer]:
    return optim.get_optimizer_class(name, bind_defaults=False)


def _check_name(name: str) -> None:
    if name not in optim.list_optimizers():
        near = get_close_matches(name, optim.list_optimizers()) or ["adamw", "muon"]
        raise UserError(f"optim.name={name} does not exist in timm; use {' or '.join(near)}")
    info = optim.get_optimizer_info(name)
    if info.second_order:
        raise UserError(f"optim.name={name} needs second derivatives, not supported; use adamw")
    if isinstance(info.opt_class, str):  # of a package that timm imports on demand
        package = info.opt_class.partition(".")[0]
        if find_spec(package) is None or not torch.cuda.is_available():
            needs = f"a CUDA device and the package {package}"
            raise UserError(f"optim.name={name} needs {needs}; use adamw")
