"""Not a kernel: the fastest backend that may serve a call, found by measuring and then kept."""

from functools import cache

import torch

from vitrail.attention.backends import Backend, Kernels, Request, load
from vitrail.attention.selection.tune import Choice, candidates, choose


class Auto(Backend):
    """Chooses for each distinct request.

    A run chooses before it begins and puts the chosen backends in the layers; called directly, as
    in a notebook, the first call of a shape takes about half a second longer. A graph of
    torch.compile breaks here, because it could not be measured in.
    """

    name = "auto"

    @staticmethod
    @cache
    def choice(request: Request) -> Choice:
        """What serves the request, and why."""
        return choose(request)

    @torch.compiler.disable
    def refuse(self, request: Request) -> list[str]:
        able, _ = candidates(request)
        return [] if able else ["find a backend for this call"]

    def kernels(self, request: Request, *, compiled: bool = False) -> Kernels:
        return load(self.choice(request).name).kernels(request, compiled=compiled)

    @torch.compiler.disable
    def __call__(self, q, k, v, *, mask, bias, scale, dropout_p):
        request = Request.of(q, k, v, mask, bias, dropout_p)
        chosen = load(self.choice(request).name)
        return chosen(q, k, v, mask=mask, bias=bias, scale=scale, dropout_p=dropout_p)


BACKEND = Auto()
