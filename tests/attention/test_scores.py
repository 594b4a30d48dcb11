"""Scores at the edges of floating point, of unusual widths, and under a scale of one's own."""

import pytest
import torch

from vitrail.attention import Grid, Mask, MultiHeadAttention2d, attend

from .cases import ON_CPU
from .oracle import assert_near, attention

each_backend = pytest.mark.parametrize("backend", ON_CPU)


def with_gradients(backend, q, k, v, **given):
    """Our outputs and gradients, and float64's."""
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    out = attend(*leaves, backend=backend, **given)
    doubles = [tensor.double().requires_grad_() for tensor in (q, k, v)]
    mask = given.pop("mask", None)
    expected = attention(
        *doubles, visible=None if mask is None else mask.visible(q.device), **given
    )
    ours = torch.autograd.grad(out.square().sum(), leaves)
    theirs = torch.autograd.grad(expected.square().sum(), doubles)
    return [out, *ours], [expected, *theirs]


@each_backend
@pytest.mark.parametrize("masked", [False, True])
def test_very_negative_scores_give_the_same_weights_as_others(backend, masked):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 15, 8)
    q[..., 0], k[..., 0] = 20.0, -20.0  # adds -141 to every score: exp of it is 0 in fp32
    mask = Mask(allowed=torch.rand(2, 3, 15, 15) > 0.5) if masked else None
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * 8**-0.5
    assert scores.logsumexp(-1).max() < -100
    # Each of the 8 products that a score of -141 is summed from is rounded, in whatever order a
    # kernel adds them, and a weight changes by as much as its score and the largest one together.
    rounding = 2 * 8 * 141 * torch.finfo(torch.float32).eps  # 2.7e-4
    for ours, theirs in zip(*with_gradients(backend, q, k, v, mask=mask), strict=True):
        assert (ours - theirs).norm() <= rounding * theirs.norm()


@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_large_scores_overflow_to_no_nan_in_any_dtype(backend, dtype, sign):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 15, 8).to(dtype)
    q[..., 0], k[..., 0] = 40.0, sign * 40.0
    for tensor in with_gradients(backend, q, k, v)[0]:
        assert torch.isfinite(tensor).all()


@each_backend
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves_lose_no_accuracy_on_very_negative_scores(backend, dtype):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 15, 8)
    q[..., 0], k[..., 0] = 20.0, -20.0
    q, k, v = (tensor.to(dtype) for tensor in (q, k, v))
    assert_near("output", attend(q, k, v, backend=backend), attention(q, k, v))


@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_row_with_one_visible_key_is_that_keys_value_exactly(backend, dtype):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 15, 8).to(dtype)
    key = torch.randint(15, (15,))
    mask = Mask(
        allowed=torch.zeros(15, 15, dtype=torch.bool).scatter(1, key[:, None], True)[None, None]
    )
    assert torch.equal(attend(q, k, v, mask=mask, backend=backend), v[:, :, key])


@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_huge_finite_bias_makes_no_nan_in_any_dtype(backend, dtype):
    # -1e9 is how others hide keys; it is -inf in fp16 and a whole row of it must not be 0/0.
    torch.manual_seed(0)
    q, k, v = (tensor.to(dtype).requires_grad_() for tensor in torch.randn(3, 2, 3, 15, 8))
    bias = torch.zeros(1, 1, 15, 15)
    bias[..., 1, :] = -1e9
    bias[..., 2, 3:] = -1e9
    out = attend(q, k, v, bias=bias, backend=backend)
    for tensor in (out, *torch.autograd.grad(out.sum(), (q, k, v))):
        assert torch.isfinite(tensor).all()


@each_backend
@pytest.mark.parametrize("width", [1, 2, 6, 7, 80])
def test_any_head_width_is_computed_at_its_own_scale(backend, width):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 15, width)
    for ours, theirs in zip(*with_gradients(backend, q, k, v), strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=2e-5, rtol=0)
    explicit = attend(q, k, v, scale=width**-0.5, backend=backend)
    assert torch.equal(attend(q, k, v, backend=backend), explicit)


@each_backend
@pytest.mark.parametrize("scale", [1.0, 0.01, 0.0])
def test_a_scale_of_ones_own_replaces_the_default(backend, scale):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 15, 8)
    mask = Mask(allowed=torch.rand(2, 1, 15, 15) > 0.5)
    for ours, theirs in zip(*with_gradients(backend, q, k, v, scale=scale, mask=mask), strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=2e-5, rtol=0)


@each_backend
def test_the_bias_is_added_after_the_scale(backend):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 15, 8)
    bias = torch.randn(1, 3, 15, 15)
    ours, theirs = with_gradients(backend, q, k, v, scale=0.1, bias=bias)
    assert_near("output", ours[0], theirs[0])


@each_backend
def test_one_query_may_look_at_many_keys(backend):
    torch.manual_seed(0)
    q, (k, v) = torch.randn(2, 3, 1, 8), torch.randn(2, 2, 3, 15, 8)
    mask = Mask(valid=torch.rand(2, 15) > 0.4)
    for ours, theirs in zip(*with_gradients(backend, q, k, v, mask=mask), strict=True):
        assert_near("output or gradient", ours, theirs)


def test_the_module_scales_by_the_head_width_and_not_by_the_model_width():
    assert MultiHeadAttention2d(24, 4).scale == 6**-0.5
    assert MultiHeadAttention2d(24, 4, scale=0.5).scale == 0.5


@each_backend
def test_the_module_uses_the_scale_that_it_was_given(backend):
    torch.manual_seed(0)
    usual = MultiHeadAttention2d(12, 3, backend=backend)
    torch.manual_seed(0)
    double = MultiHeadAttention2d(12, 3, backend=backend, scale=2 * 4**-0.5)
    with torch.no_grad():
        usual.qkv.weight[:12] *= 2
        usual.qkv.bias[:12] *= 2
    x = torch.randn(2, 15, 12)
    torch.testing.assert_close(usual(x, Grid(3, 5)), double(x, Grid(3, 5)), atol=1e-6, rtol=0)
