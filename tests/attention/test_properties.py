"""What must hold for any shape and any mask, on inputs that hypothesis makes up."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.attention import Mask, attend, backends
from vitrail.attention.backends import Request

from .cases import ON_CPU
from .oracle import assert_near, attention, dead_rows

bounded = settings(max_examples=30, deadline=None, derandomize=True, database=None)
sizes = st.tuples(
    st.integers(1, 3), st.integers(1, 4), st.integers(1, 20), st.sampled_from([1, 3, 4, 6, 8])
)
seeds = st.integers(0, 2**31)
densities = st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0])


def drawn(shape, seed, density):
    """q, k, v and visibility (B|1, h|1, N, N) in which about `density` of the pairs are seen."""
    generator = torch.Generator().manual_seed(seed)
    batch, heads, tokens, width = shape
    q, k, v = torch.randn(3, batch, heads, tokens, width, generator=generator)
    axes = [(1, 1), (batch, 1), (1, heads), (batch, heads)][seed % 4]
    visible = torch.rand(*axes, tokens, tokens, generator=generator) < density
    return q, k, v, visible


@pytest.mark.parametrize("backend", ON_CPU)
@bounded
@given(shape=sizes, seed=seeds, density=densities)
def test_any_shape_and_mask_equals_float64(backend, shape, seed, density):
    q, k, v, visible = drawn(shape, seed, density)
    out = attend(q, k, v, mask=Mask(allowed=visible), backend=backend)
    assert_near("output", out, attention(q, k, v, visible=visible))
    assert (out[dead_rows(visible, None, (*q.shape[:3], k.shape[2]))] == 0).all()


@pytest.mark.parametrize("backend", ON_CPU)
@bounded
@given(shape=sizes, seed=seeds, density=densities)
def test_an_output_lies_among_the_values_that_may_be_seen(backend, shape, seed, density):
    q, k, v, visible = drawn(shape, seed, density)
    out = attend(q, k, v, mask=Mask(allowed=visible), backend=backend)
    seen = visible.expand(*q.shape[:3], k.shape[2])[..., None]  # (B, h, N, N, 1)
    values = v[:, :, None]  # (B, h, 1, N, d)
    alive = seen.any(-2)
    low = values.masked_fill(~seen, float("inf")).amin(-2)
    high = values.masked_fill(~seen, float("-inf")).amax(-2)
    assert ((out >= low - 1e-5) | ~alive).all()
    assert ((out <= high + 1e-5) | ~alive).all()


@bounded
@given(
    device=st.sampled_from(["cpu", "cuda", "mps"]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    width=st.integers(1, 300),
    masks=st.frozensets(st.sampled_from(["padding", "mask", "pattern"])),
    flags=st.tuples(*[st.booleans()] * 4),
    compute=st.sampled_from([(7, 5), (8, 0), (9, 0), (10, 0)]),
)
def test_every_request_is_either_served_or_refused_in_one_sentence(
    device, dtype, width, masks, flags, compute
):
    bias, bias_grad, dropout, backward = flags
    request = Request(
        device, dtype, 2, 3, 16, 16, width, masks, None, bias, bias and bias_grad, dropout,
        backward, compute if device == "cuda" else None,
    )  # fmt: skip
    able = backends.permitted(request)
    assert {"reference", "eager", "sdpa", "sdpa_math"} <= set(able)
    for name in backends.names():
        reasons = backends.load(name).refuse(request)
        assert (name in able) == (not reasons)
        assert all(reason and "\n" not in reason for reason in reasons)
