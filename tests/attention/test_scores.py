"""Scores at the edges of floating point, of unusual widths, and under a scale of one's own."""

import pytest
import torch

from vitrail.attention import Grid, Mask, MultiHeadAttention2d, attend

from .cases import ON_CPU
from .oracle import assert_near, attention, exact_copies, with_gradients

each_backend = pytest.mark.parametrize("backend", ON_CPU)


def drawn(width: int = 8, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(3, 2, 3, 15, width).to(dtype)


def both(backend, q, k, v, *, mask=None, **given) -> zip:
    """Our output and gradients, each with float64's."""
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    doubles = exact_copies(leaves)
    out = attend(*leaves, mask=mask, backend=backend, **given)
    visible = None if mask is None else mask.visible(q.device)
    expected = attention(*doubles, visible=visible, **given)
    return zip(with_gradients(out, leaves), with_gradients(expected, doubles), strict=True)


@each_backend
@pytest.mark.parametrize("masked", [False, True])
def test_very_negative_scores_give_the_same_weights_as_others(backend, masked):
    q, k, v = drawn()
    q[..., 0], k[..., 0] = 20.0, -20.0  # adds -141 to every score: exp of it is 0 in fp32
    mask = Mask(allowed=torch.rand(2, 3, 15, 15) > 0.5) if masked else None
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * 8**-0.5
    assert scores.logsumexp(-1).max() < -100
    # Each of the 8 products that a score of -141 is summed from is rounded, in whatever order a
    # kernel adds them, and a weight changes by as much as its score and the largest one together.
    rounding = 2 * 8 * 141 * torch.finfo(torch.float32).eps  # 2.7e-4
    for ours, theirs in both(backend, q, k, v, mask=mask):
        assert (ours - theirs).norm() <= rounding * theirs.norm()


@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_large_scores_overflow_to_no_nan_in_any_dtype(backend, dtype, sign):
    q, k, v = drawn(dtype=dtype)
    q[..., 0], k[..., 0] = 40.0, sign * 40.0
    for tensor, _ in both(backend, q, k, v):
        assert torch.isfinite(tensor).all()


@each_backend
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves_lose_no_accuracy_on_very_negative_scores(backend, dtype):
    q, k, v = drawn(dtype=dtype)
    q[..., 0], k[..., 0] = 20.0, -20.0
    assert_near("output", attend(q, k, v, backend=backend), attention(q, k, v))


@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_row_with_one_visible_key_is_that_keys_value_exactly(backend, dtype):
    q, k, v = drawn(dtype=dtype)
    key = torch.randint(15, (15,))
    allowed = (torch.arange(15) == key[:, None])[None, None]
    assert torch.equal(attend(q, k, v, mask=allowed, backend=backend), v[:, :, key])


@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_huge_finite_bias_makes_no_nan_in_any_dtype(backend, dtype):
    # -1e9 is how others hide keys; it is -inf in fp16 and a whole row of it must not be 0/0.
    q, k, v = (tensor.requires_grad_() for tensor in drawn(dtype=dtype))
    bias = torch.zeros(1, 1, 15, 15)
    bias[..., 1, :] = -1e9
    bias[..., 2, 3:] = -1e9
    out = attend(q, k, v, bias=bias, backend=backend)
    for tensor in (out, *torch.autograd.grad(out.sum(), (q, k, v))):
        assert torch.isfinite(tensor).all()


@each_backend
@pytest.mark.parametrize("width", [1, 2, 6, 7, 80])
def test_any_head_width_is_computed_at_its_own_scale(backend, width):
    q, k, v = drawn(width)
    for ours, theirs in both(backend, q, k, v):
        torch.testing.assert_close(ours.double(), theirs, atol=2e-5, rtol=0)
    explicit = attend(q, k, v, scale=width**-0.5, backend=backend)
    assert torch.equal(attend(q, k, v, backend=backend), explicit)


@each_backend
@pytest.mark.parametrize("scale", [1.0, 0.01, 0.0])
def test_a_scale_of_ones_own_replaces_the_default(backend, scale):
    q, k, v = drawn()
    mask = Mask(allowed=torch.rand(2, 1, 15, 15) > 0.5)
    for ours, theirs in both(backend, q, k, v, scale=scale, mask=mask):
        torch.testing.assert_close(ours.double(), theirs, atol=2e-5, rtol=0)


@each_backend
def test_the_bias_is_added_after_the_scale(backend):
    q, k, v = drawn()
    bias = torch.randn(1, 3, 15, 15)
    out, expected = next(both(backend, q, k, v, scale=0.1, bias=bias))
    assert_near("output", out, expected)


@each_backend
def test_one_query_may_look_at_many_keys(backend):
    q, k, v = drawn()
    mask = Mask(valid=torch.rand(2, 15) > 0.4)
    for ours, theirs in both(backend, q[:, :, :1], k, v, mask=mask):
        assert_near("output or gradient", ours, theirs)


@each_backend
def test_the_module_scales_by_the_head_width_or_as_it_was_told(backend):
    usual = MultiHeadAttention2d(12, 3, backend=backend)
    double = MultiHeadAttention2d(12, 3, backend=backend, scale=2 * 4**-0.5)
    double.load_state_dict(usual.state_dict())
    with torch.no_grad():
        usual.qkv.weight[:12] *= 2
        usual.qkv.bias[:12] *= 2
    x = torch.randn(2, 15, 12)
    torch.testing.assert_close(usual(x, Grid(3, 5)), double(x, Grid(3, 5)), atol=1e-6, rtol=0)
