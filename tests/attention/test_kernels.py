"""The profiler sees the kernel that a backend promises, and none that it rules out."""

from collections.abc import Callable

import pytest
import torch

from vitrail.attention import Grid, Mask, attend, backends
from vitrail.attention.backends import Request

from .cases import BATCH, HEADS, KINDS, ON_CPU, WIDTH, mask_and_bias, seen_while

GRID = Grid(3, 5, 1)

# What a backend's own promise must hold at least on a CPU, so that an empty one fails.
AT_LEAST = {
    "eager": {"aten::bmm", "aten::_softmax"},
    "reference": {"aten::bmm", "aten::_softmax"},
    "sdpa": {"aten::scaled_dot_product_attention"},
    "sdpa_flash": {"aten::_scaled_dot_product_flash_attention_for_cpu"},
    "sdpa_math": {"aten::_scaled_dot_product_attention_math"},
}
FUSED = {
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_attention_math",
}


def check(backend: str, call: Callable[[], object], *given) -> set[str]:
    """What runs is what the backend promises for that request, and is given back."""
    kernels = backends.load(backend).kernels(Request.of(*given, 0.0))
    seen = seen_while(call)
    assert kernels.required <= seen
    assert not kernels.forbidden & seen
    return seen


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if not kind.learned])
@pytest.mark.parametrize("backend", ON_CPU)
def test_the_promised_kernel_runs_and_no_other(backend, kind, backward):
    torch.manual_seed(0)
    mask, bias = mask_and_bias(KINDS[kind], GRID, torch.float32)
    q, k, v = torch.randn(3, BATCH, HEADS, GRID.tokens, WIDTH, requires_grad=backward)
    given = {"mask": mask, "bias": bias, "backend": backend}
    seen = check(backend, lambda: attend(q, k, v, **given), q, k, v, mask, bias)
    assert AT_LEAST[backend] <= seen
    if backend != "sdpa":  # which leaves the choice to torch
        assert not (FUSED - AT_LEAST[backend]) & seen


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("backend", ON_CPU)
def test_the_promised_kernel_runs_in_every_dtype_under_autocast_too(backend, dtype):
    q, k, v = torch.randn(3, BATCH, HEADS, GRID.tokens, WIDTH).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check(backend, lambda: attend(q, k, v, backend=backend), q, k, v, Mask(), None)


@pytest.mark.parametrize("device, compute", [("cpu", None), ("cuda", (9, 0))])
def test_a_promise_names_at_least_one_kernel(device, compute):
    request = Request(device, torch.float16, 1, 1, queries=4, keys=4, width=16, compute=compute)
    for backend in backends.permitted(request):
        kernels = backends.load(backend).kernels(request)
        assert kernels.required, backend
        assert not kernels.required & kernels.forbidden
