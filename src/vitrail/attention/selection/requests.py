"""What a model's attention layers will ask of their backends, found before any data is read.

The model runs on the meta device, where a pass computes shapes and costs nothing.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from vitrail.attention.backends import Backend, Request, compute_capability


class Recorder(Backend):
    """Writes down what it is asked and answers with nothing."""

    name = "recorder"

    def __init__(self):
        self.requests: list[Request] = []

    def refuse(self, request: Request) -> list[str]:
        return []

    def __call__(self, q, k, v, *, mask, bias, scale, dropout_p):
        self.requests.append(Request.of(q, k, v, mask, bias, dropout_p))
        return torch.empty_like(q)


def requests_of(
    meta_model: nn.Module,
    *inputs: Tensor | None,
    device: torch.device,
    dtype: torch.dtype,
    training: bool,
) -> dict[str, tuple[Request, ...]]:
    """The distinct requests of each attention layer for such inputs, by the layer's name.

    Args:
        meta_model: on the meta device, as `inputs`. A layer is a module with a `backend`.
        device, dtype: what the model will really compute on and in.
        training: with dropout and gradients, or without.
    """
    layers, mode = attention_layers(meta_model), meta_model.training
    own = {name: layer.backend for name, layer in layers.items()}
    recorders = {name: Recorder() for name in layers}
    try:
        for name, layer in layers.items():
            layer.backend = recorders[name]
        with torch.set_grad_enabled(training):
            meta_model.train(training)(*inputs)
    finally:
        meta_model.train(mode)
        for name, layer in layers.items():
            layer.backend = own[name]
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
