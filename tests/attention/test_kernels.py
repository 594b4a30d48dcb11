"""The profiler sees the kernel that a backend promises, and none that it rules out."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from vitrail.attention import Grid, Mask, attend, backends
from vitrail.attention.backends import Request

from .cases import BATCH, HEADS, KINDS, ON_CPU, WIDTH, mask_and_bias

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


def seen_while(call) -> set[str]:
    """The names of all operations that torch runs during the call."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        call()
    return {event.key for event in profiler.key_averages()}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if not kind.learned])
@pytest.mark.parametrize("backend", ON_CPU)
def test_the_promised_kernel_runs_and_no_other(backend, kind, backward):
    torch.manual_seed(0)
    mask, bias = mask_and_bias(KINDS[kind], GRID, torch.float32)
    q, k, v = torch.randn(3, BATCH, HEADS, GRID.tokens, WIDTH, requires_grad=backward)
    request = Request.of(q, k, v, mask, bias, 0.0)
    kernels = backends.load(backend).kernels(request)
    seen = seen_while(lambda: attend(q, k, v, mask=mask, bias=bias, backend=backend))
    assert kernels.required <= seen
    assert not kernels.forbidden & seen
    assert AT_LEAST[backend] <= seen
    if backend != "sdpa":  # which leaves the choice to torch
        assert not (FUSED - AT_LEAST[backend]) & seen


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("backend", ON_CPU)
def test_the_promised_kernel_runs_in_every_dtype_under_autocast_too(backend, dtype):
    q, k, v = torch.randn(3, BATCH, HEADS, GRID.tokens, WIDTH).to(dtype)
    request = Request.of(q, k, v, Mask(), None, 0.0)
    kernels = backends.load(backend).kernels(request)

    def call():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            attend(q, k, v, backend=backend)

    seen = seen_while(call)
    assert kernels.required <= seen
    assert not kernels.forbidden & seen


@pytest.mark.parametrize(
    "backend, request_",
    [
        (name, request)
        for request in (
            Request("cpu", torch.float16, 1, 1, queries=4, keys=4, width=16),
            Request("cuda", torch.float16, 1, 1, queries=4, keys=4, width=16, compute=(9, 0)),
        )
        for name in backends.permitted(request)
    ],
    ids=lambda value: value if isinstance(value, str) else value.device,
)
def test_a_promise_names_at_least_one_kernel(backend, request_):
    kernels = backends.load(backend).kernels(request_)
    assert kernels.required
    assert not kernels.required & kernels.forbidden
