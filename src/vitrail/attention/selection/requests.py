"""What a model's attention layers will ask of their backends, seen on its outline before any data.

The outline is the model on the meta device, where a pass computes shapes and costs nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitrail.attention.backends import Backend, Request, compute_capability


class Recorder(Backend):
    """Writes down what it is asked and answers with nothing."""

    name = "recorder"
    capabilities = {}

    def __init__(self):
        self.requests: list[Request] = []

    def refuse(self, request: Request) -> list[str]:
        self.requests.append(request)
        return []

    def __call__(self, q, k, v, *, mask, bias, scale, dropout_p):
        return torch.empty_like(q)


def requests_of(
    outline: nn.Module,
    *inputs: Tensor | None,
    device: torch.device,
    dtype: torch.dtype,
    training: bool,
) -> dict[str, tuple[Request, ...]]:
    """The distinct requests of each attention layer for such inputs, by the layer's name.

    outline, inputs: on the meta device. A layer is a module with a `backend`. device, dtype: what
    the model will really compute on and in. training: with dropout and gradients, or without.
    """
    before = outline.training
    with torch.set_grad_enabled(training), _recording(outline) as recorders:
        outline.train(training)(*inputs)
    outline.train(before)
    real = {"device": device.type, "dtype": dtype, "compute": compute_capability(device)}
    return {
        name: tuple(dict.fromkeys(replace(request, **real) for request in recorder.requests))
        for name, recorder in recorders.items()
    }


def attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that hold a backend, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(getattr(module, "backend", None), Backend)
    }


@contextmanager
def _recording(outline: nn.Module) -> Iterator[dict[str, Recorder]]:
    layers = attention_layers(outline)
    own = {name: layer.backend for name, layer in layers.items()}
    recorders = {name: Recorder() for name in layers}
    try:
        for name, layer in layers.items():
            layer.backend = recorders[name]
        yield recorders
    finally:
        for name, layer in layers.items():
            layer.backend = own[name]
