"""Attention written out in float64, apart from the code under test, and how near it must come."""

from collections.abc import Iterable

import torch
from torch import Tensor

# Against float64 on the same rounded inputs, outputs and gradients alike: the largest difference
# for what is computed in 32 bits or more, the relative L2 norm of the difference for halves.
LARGEST = {torch.float64: 1e-10, torch.float32: 1e-5}
RELATIVE = {torch.bfloat16: 1e-2, torch.float16: 2e-3}


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    visible: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """(B, h, N, d) in float64; visible bool and bias float broadcast to (B, h, N, N).

    A weight is exp(score - largest visible score) over their sum; who sees nothing gets 0.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.einsum("bhqd,bhkd->bhqk", q.double(), k.double()) * scale
    seen = torch.ones_like(scores, dtype=torch.bool)
    if visible is not None:
        seen = seen & visible
    if bias is not None:
        bias = bias.double()
        cut = bias == float("-inf")
        seen = seen & ~cut
        scores = scores + bias.masked_fill(cut, 0.0)
    top = scores.detach().masked_fill(~seen, float("-inf")).amax(-1, keepdim=True)
    top = top.masked_fill(top.isinf(), 0.0)
    weights = (scores.masked_fill(~seen, 0.0) - top).exp() * seen
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)
    return torch.einsum("bhqk,bhkd->bhqd", weights, v.double())


def dead_rows(visible: Tensor | None, bias: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    """(B, h, N) bool: the queries that may see nothing. shape is (B, h, N, N)."""
    seen = torch.ones(shape, dtype=torch.bool)
    if visible is not None:
        seen = seen & visible
    if bias is not None:
        seen = seen & (bias != float("-inf"))
    return ~seen.any(-1)


def exact_copies(leaves: list[Tensor]) -> list[Tensor]:
    """The same numbers in float64 on the CPU, as leaves of their own."""
    return [leaf.detach().cpu().double().requires_grad_() for leaf in leaves]


def with_gradients(out: Tensor, leaves: Iterable[Tensor]) -> list[Tensor]:
    """The output, and the gradients of the sum of its squares."""
    return [out, *torch.autograd.grad(out.square().sum(), list(leaves))]


def assert_same(
    out: Tensor, leaves: list[Tensor], exact: Tensor, doubles: list[Tensor], under: str = ""
) -> list[Tensor]:
    """Output and gradients are near those of `exact`; our gradients are given back."""
    towards = torch.randn(exact.shape).to(out.dtype)
    found = torch.autograd.grad(out, leaves, towards.to(out.device))
    wanted = torch.autograd.grad(exact, doubles, towards.to(exact.dtype))
    assert_near(f"output{under}", out.cpu(), exact)
    for number, (actual, want) in enumerate(zip(found, wanted, strict=True)):
        assert actual.dtype == leaves[number].dtype
        assert_near(f"gradient {number}{under}", actual.cpu(), want)
    return list(found)


def assert_near(name: str, actual: Tensor, expected: Tensor) -> None:
    """`actual` is finite and as near to float64 `expected` as its dtype allows."""
    assert torch.isfinite(actual).all(), f"{name} is not finite"
    difference = actual.double() - expected.double()
    if actual.dtype in LARGEST:
        gap, allowed = difference.abs().max().item(), LARGEST[actual.dtype]
    else:
        # A single key has a gradient of exactly 0, to which nothing is near in relative terms.
        size = expected.norm().clamp(min=1e-3 * expected.numel() ** 0.5)
        gap, allowed = (difference.norm() / size).item(), RELATIVE[actual.dtype]
    assert gap <= allowed, f"{name} is {gap:.2e} from float64 and {allowed:.0e} is allowed"
