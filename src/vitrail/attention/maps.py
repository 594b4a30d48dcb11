"""Where a model looks: the attention weights of its layers, whatever backends compute them."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from difflib import get_close_matches
from functools import partial

import torch
from torch import Tensor, nn

from vitrail.attention.backends import without_autocast
from vitrail.attention.selection.requests import attention_layers
from vitrail.errors import UserError


@torch.no_grad()
def attention_maps(
    model: nn.Module,
    images: Tensor,
    valid: Tensor | None = None,
    *,
    layers: Sequence[str] | None = None,
) -> dict[str, Tensor]:
    """The weights of the attention layers in one evaluation of `images`, by the layers' names.

    They come from the layer's own q and k by the reference formula. The model stays as it was, and
    no random number is drawn. All maps are held at once: 4 B h N² bytes a layer.

    Args:
        images: as for the model, and `valid` too.
        layers: names of some, None for all; UserError for one that no layer has.

    Returns:
        (B, h, N, N) each, query before key, prefix tokens first, in at least fp32; of a pooling
        query (B, h, 1, area). Rows add up to 1, and to 0 where a token may see nothing.
    """
    present = attention_layers(model)
    wanted = list(present) if layers is None else layers
    for name in wanted:
        if name not in present:
            near = get_close_matches(name, present, n=3, cutoff=0) or ["none"]
            raise UserError(f"layer {name} has no attention; there are {', '.join(near)}")
    maps: dict[str, Tensor] = {}

    def keep(name: str, layer: nn.Module, args: tuple, options: dict, _: Tensor) -> None:
        maps[name] = layer.weights(*args, **options)

    with ExitStack() as stack:
        for name in wanted:
            hook = present[name].register_forward_hook(partial(keep, name), with_kwargs=True)
            stack.callback(hook.remove)
        # A graph that was compiled without the hooks would not call them.
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_evaluating(model))
        model(images) if valid is None else model(images, valid)
    return maps


def rollout(maps: Iterable[Tensor]) -> Tensor:
    """How much of each token (last axis) has reached each token through the layers, (B, N, N).

    Attention rollout (Abnar & Zuidema 2020, arXiv:2005.00928): the mean over heads and the identity
    of the residual stream, half each, multiplied from the first layer to the last. maps: (B, h, N,
    N) each, in the order of the layers. Rows add up to 1.
    """
    total = None
    for weights in maps:
        layer = weights.mean(1)
        layer = layer + torch.eye(layer.shape[-1], dtype=layer.dtype, device=layer.device)
        layer = layer / layer.sum(-1, keepdim=True)  # not by 2: a token that sees nothing stays
        with without_autocast(layer.device.type):
            total = layer if total is None else layer @ total
    if total is None:
        raise UserError("rollout multiplies the maps of layers and has none; give at least one")
    return total


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """All of the model in evaluation, and then each part in the mode that it was in."""
    before = {module: module.training for module in model.modules()}
    try:
        model.eval()
        yield
    finally:
        for module, training in before.items():
            module.training = training
