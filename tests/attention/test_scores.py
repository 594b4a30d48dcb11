"""Scores at the edges of floating point, of unusual widths, and under a scale given or learned."""

import math

import pytest
import torch

from vitrail.attention import Grid, Mask, MultiHeadAttention2d, attend
from vitrail.attention.scale import kernel_scale, score_scale
from vitrail.model import ViT

from .cases import ON_CPU
from .oracle import assert_near, attention, exact_copies, with_gradients

DIM, HEADS, WIDTH = 24, 3, 8
GRID = Grid(3, 5, 1)

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


def build(backend: str = "reference", **options) -> MultiHeadAttention2d:
    torch.manual_seed(0)
    return MultiHeadAttention2d(DIM, HEADS, backend=backend, **options)


def tokens() -> torch.Tensor:
    return torch.randn(2, GRID.tokens, DIM, generator=torch.Generator().manual_seed(1))


@each_backend
def test_a_learned_scale_begins_as_the_default(backend):
    learned, plain = build(backend, scale="learned"), build(backend)
    torch.testing.assert_close(learned(tokens(), GRID), plain(tokens(), GRID), atol=1e-6, rtol=0)


@each_backend
def test_each_head_learns_its_own_scale_and_the_gradient_reaches_it(backend):
    layer = build(backend, scale="learned")
    numbers = torch.tensor([0.05, 0.7, 9.0])
    with torch.no_grad():
        layer.log_scale.copy_(numbers.log())
    seen = []
    layer.proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    layer(tokens(), GRID)
    qkv = layer.qkv(tokens()).detach().double().unflatten(-1, (3, HEADS, WIDTH))
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    slow = numbers.double().log().requires_grad_()
    expected = attention(q * slow.exp()[:, None, None], k, v, scale=1.0).transpose(1, 2).flatten(2)
    torch.testing.assert_close(seen[0].double(), expected, atol=1e-5, rtol=0)
    (found,) = torch.autograd.grad(seen[0].square().sum(), layer.log_scale)
    (wanted,) = torch.autograd.grad(expected.square().sum(), slow)
    torch.testing.assert_close(found.double(), wanted, atol=1e-4, rtol=1e-4)
    assert (found != 0).all()


def test_a_learned_scale_is_held_below_a_hundred():
    log_scale = torch.tensor([math.log(99.0), 5.0, 50.0], requires_grad=True)
    factor = score_scale(log_scale, 1.0)
    torch.testing.assert_close(factor.flatten(), torch.tensor([99.0, 100.0, 100.0]))
    factor.sum().backward()
    torch.testing.assert_close(log_scale.grad, torch.tensor([99.0, 0.0, 0.0]))


@each_backend
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_queries_keep_their_dtype_under_a_learned_scale(backend, dtype):
    layer = build(backend, scale="learned").to(dtype)
    assert layer(tokens().to(dtype), GRID).dtype == dtype
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert build(backend, scale="learned")(tokens(), GRID).dtype == torch.bfloat16


def test_a_state_dict_has_a_scale_only_where_it_is_learned():
    assert "log_scale" not in build().state_dict()
    assert "log_scale" not in build(scale=0.5).state_dict()
    assert build(scale="learned").state_dict()["log_scale"].shape == (HEADS,)


def test_a_vit_learns_a_scale_a_block_and_lets_none_decay():
    sizes = {"image_size": 16, "patch_size": 8, "dim": DIM, "depth": 2, "heads": HEADS}
    model = ViT(**sizes, num_classes=5, scale="learned")
    names = {name for name, p in model.named_parameters() if name.endswith("log_scale")}
    assert names == {"blocks.0.attn.log_scale", "blocks.1.attn.log_scale"}
    assert all(model.get_parameter(name).ndim == 1 for name in names)  # optimizers spare 1-D ones


@pytest.mark.parametrize("scale", ["learnt", "0.5", 0, 0.0, -1.0, math.nan, math.inf, True])
def test_a_scale_that_is_anything_but_a_number_above_0_or_learned_is_refused_in_a_line(scale):
    with pytest.raises(ValueError, match=r"^scale=.* is neither a number above 0 nor `learned`; "):
        build(scale=scale)


def test_a_scale_that_is_a_number_is_left_to_the_kernel():
    assert kernel_scale(None, 64) == 0.125
    assert kernel_scale(0.3, 64) == 0.3
    assert kernel_scale(2, 64) == 2.0
    assert kernel_scale("learned", 64) == 1.0
