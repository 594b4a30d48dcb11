"""A backend inside a graph of torch.compile, as a model has it under compile=true."""

import torch

from vitrail.attention.backends import Backend, Capability, Kernels, Request

KINDS_OF_CALLS = 64  # that are compiled before torch gives up, and says so


class Compiled(Backend):
    """Serves what the backend serves; its first call of a kind takes seconds."""

    def __init__(self, backend: Backend):
        self.name, self.keeps_scores = backend.name, backend.keeps_scores
        self._backend = backend
        # With `fullgraph` torch raises where it would otherwise go on uncompiled, and quietly.
        self._graph = torch.compile(backend.__call__, fullgraph=True, dynamic=False)

    def capability(self, request: Request) -> Capability | None:
        return self._backend.capability(request)

    def refuse(self, request: Request) -> list[str]:
        return self._backend.refuse(request)

    def variant(self, request: Request) -> str | None:
        return self._backend.variant(request)

    def kernels(self, request: Request, *, compiled: bool = True) -> Kernels:
        return self._backend.kernels(request, compiled=compiled)

    def __call__(self, q, k, v, **given):
        with torch._dynamo.config.patch(recompile_limit=KINDS_OF_CALLS):
            return self._graph(q, k, v, **given)
