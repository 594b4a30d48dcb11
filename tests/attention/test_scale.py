"""A scale that every head learns: served by every kernel, clamped, and absent unless asked for."""

import math

import pytest
import torch

from vitrail.attention import Grid, MultiHeadAttention2d
from vitrail.attention.scale import kernel_scale, score_scale
from vitrail.model import ViT

from .cases import ON_CPU
from .oracle import attention

DIM, HEADS, WIDTH = 24, 3, 8
GRID = Grid(3, 5, 1)

each_backend = pytest.mark.parametrize("backend", ON_CPU)


def build(backend: str = "reference", **options) -> MultiHeadAttention2d:
    torch.manual_seed(0)
    return MultiHeadAttention2d(DIM, HEADS, backend=backend, **options)


def tokens() -> torch.Tensor:
    return torch.randn(2, GRID.tokens, DIM, generator=torch.Generator().manual_seed(1))


@each_backend
def test_it_begins_as_the_default_scale(backend):
    learned, plain = build(backend, scale="learned"), build(backend)
    torch.testing.assert_close(learned(tokens(), GRID), plain(tokens(), GRID), atol=1e-6, rtol=0)


@each_backend
def test_each_head_has_its_own_and_the_gradient_reaches_it(backend):
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


def test_it_is_held_below_a_hundred():
    log_scale = torch.tensor([math.log(99.0), 5.0, 50.0], requires_grad=True)
    factor = score_scale(log_scale, 1.0)
    torch.testing.assert_close(factor.flatten(), torch.tensor([99.0, 100.0, 100.0]))
    factor.sum().backward()
    torch.testing.assert_close(log_scale.grad, torch.tensor([99.0, 0.0, 0.0]))


@each_backend
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_queries_keep_their_dtype(backend, dtype):
    layer = build(backend, scale="learned").to(dtype)
    assert layer(tokens().to(dtype), GRID).dtype == dtype
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert build(backend, scale="learned")(tokens(), GRID).dtype == torch.bfloat16


def test_a_state_dict_has_it_only_where_it_is_learned():
    assert "log_scale" not in build().state_dict()
    assert "log_scale" not in build(scale=0.5).state_dict()
    assert build(scale="learned").state_dict()["log_scale"].shape == (HEADS,)


def test_a_vit_learns_one_a_block_and_lets_none_decay():
    sizes = {"image_size": 16, "patch_size": 8, "dim": DIM, "depth": 2, "heads": HEADS}
    model = ViT(**sizes, num_classes=5, scale="learned")
    names = {name for name, p in model.named_parameters() if name.endswith("log_scale")}
    assert names == {"blocks.0.attn.log_scale", "blocks.1.attn.log_scale"}
    assert all(model.get_parameter(name).ndim == 1 for name in names)  # optimizers spare 1-D ones


@pytest.mark.parametrize("scale", ["learnt", "0.5", 0, 0.0, -1.0, math.nan, math.inf, True])
def test_anything_but_a_number_above_0_or_learned_is_refused_in_a_line(scale):
    with pytest.raises(ValueError, match=r"^scale=.* is neither a number above 0 nor `learned`; "):
        build(scale=scale)


def test_a_number_is_left_to_the_kernel():
    assert kernel_scale(None, 64) == 0.125
    assert kernel_scale(0.3, 64) == 0.3
    assert kernel_scale(2, 64) == 2.0
    assert kernel_scale("learned", 64) == 1.0
