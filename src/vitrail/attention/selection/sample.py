"""Inputs that make a given request: what the gate proves backends on and `auto` times them on."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitrail.attention.backends import Backend, Request
from vitrail.attention.mask import Mask


@dataclass(frozen=True)
class Sample:
    """Tensors of one attention call: q, k, v and grad are (B, h, N, d), of the request's dtype.

    grad is the gradient that arrives from above. With a padding mask, sample i has a share of
    i / batch of its keys padded, so the first is whole and the last has about one real key.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor
    mask: Mask
    bias: Tensor | None

    @classmethod
    def of(cls, request: Request, *, seed: int = 0) -> "Sample":
        """Drawn from a normal distribution; equal on every call with equal arguments."""
        generator = torch.Generator().manual_seed(seed)
        batch, heads, queries, keys = request.batch, request.heads, request.queries, request.keys

        def draw(*shape: int, learned: bool) -> Tensor:
            values = torch.randn(shape, generator=generator).to(request.device, request.dtype)
            return values.requires_grad_(learned)

        valid = allowed = None
        if "padding" in request.masks:
            lengths = keys - torch.arange(batch) * keys // batch  # (B,)
            valid = (torch.arange(keys) < lengths[:, None]).to(request.device)
        if "mask" in request.masks:
            allowed = torch.rand(1, 1, queries, keys, generator=generator) < 0.5
            allowed = allowed.to(request.device)
        return cls(
            q=draw(batch, heads, queries, request.width, learned=request.backward),
            k=draw(batch, heads, keys, request.width, learned=request.backward),
            v=draw(batch, heads, keys, request.width, learned=request.backward),
            grad=draw(batch, heads, queries, request.width, learned=False),
            mask=Mask(valid=valid, allowed=allowed, pattern=request.pattern),
            bias=draw(1, heads, queries, keys, learned=request.bias_grad) if request.bias else None,
        )

    @property
    def scale(self) -> float:
        return self.q.shape[-1] ** -0.5

    def forward(self, backend: Backend) -> Tensor:
        """One call of the backend without dropout; (B, h, N, d)."""
        return backend(
            self.q, self.k, self.v, mask=self.mask, bias=self.bias, scale=self.scale, dropout_p=0.0
        )

    def head(self, number: int, dtype: torch.dtype) -> "Sample":
        """A copy of one head, (B, 1, N, d) each, in another dtype."""

        def copy(tensor: Tensor) -> Tensor:
            part = tensor.detach()[:, number : number + 1].to(dtype)
            return part.requires_grad_(tensor.requires_grad)

        tensors = {name: copy(one) for name, one in vars(self).items() if isinstance(one, Tensor)}
        return replace(self, **tensors)

    def learned(self) -> dict[str, Tensor]:
        """The tensors that gradients are wanted for, by name."""
        parts = vars(self).items()
        return {name: one for name, one in parts if isinstance(one, Tensor) and one.requires_grad}

    def backward(self, out: Tensor) -> dict[str, Tensor]:
        """Gradients of sum(out * grad), by the name of their tensor."""
        learned = self.learned()
        gradients = torch.autograd.grad(out, list(learned.values()), self.grad)
        return dict(zip(learned, gradients, strict=True))
