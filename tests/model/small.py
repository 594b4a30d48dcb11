"""A vision transformer small enough to test, with weights that all matter."""

from collections.abc import Iterable

import torch
from torch import nn

from vitrail.attention import backends
from vitrail.attention.backends import Request
from vitrail.model import ViT

SIZES = {"image_size": (24, 32), "patch_size": 8, "dim": 24, "depth": 2, "heads": 3}
SIZES["num_classes"] = 5
ON_CPU = backends.permitted(Request("cpu", torch.float32, 2, 3, 13, 13, 8))  # that can train there


def small_vit(**changes) -> ViT:
    """Equal weights for equal arguments, none of them so small that it would not show."""
    torch.manual_seed(0)
    model = ViT(**(SIZES | changes))
    shake(model)
    return model.eval()


def shake(model: nn.Module) -> None:
    """Give every parameter values that show in the output, whatever it was initialised to."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.2 if parameter.ndim == 1 else 0.5 * parameter.shape[-1] ** -0.5
            parameter.add_(torch.randn(parameter.shape, generator=generator) * spread)


def logits_and_gradients(
    model: nn.Module, *inputs: torch.Tensor | None, also: Iterable[torch.Tensor] = ()
) -> list[torch.Tensor]:
    """Logits, and of the sum of their squares the gradients of all parameters and of `also`."""
    logits = model(*inputs)
    leaves = [*model.parameters(), *also]
    return [logits, *torch.autograd.grad(logits.square().sum(), leaves)]
