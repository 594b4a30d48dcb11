"""Attention dropout acts in training alone, and is refused by backends that cannot drop."""

import pytest
import torch

from vitrail.attention import Grid, MultiHeadAttention2d, attend
from vitrail.attention.backends import Refused

from .cases import ON_CPU

GRID = Grid(3, 5)

each_backend = pytest.mark.parametrize("backend", ON_CPU)
each_dropping = pytest.mark.parametrize("backend", [n for n in ON_CPU if n != "sdpa_flash"])


def build(backend: str, dropout: float = 0.5) -> MultiHeadAttention2d:
    torch.manual_seed(0)
    return MultiHeadAttention2d(12, 3, backend=backend, dropout=dropout)


@each_backend
def test_eval_is_bit_identical_on_repeat_and_equal_to_no_dropout(backend):
    layer = build(backend).eval()
    x = torch.randn(2, 15, 12)
    out = layer(x, GRID)
    assert torch.equal(out, layer(x, GRID))
    assert torch.equal(out, build(backend, dropout=0.0)(x, GRID))
    torch.testing.assert_close(out, build("reference").eval()(x, GRID), atol=1e-5, rtol=0)


@each_dropping
def test_two_calls_in_training_differ_and_a_seed_repeats_them(backend):
    layer = build(backend).train()
    x = torch.randn(2, 15, 12)
    torch.manual_seed(1)
    first, second = layer(x, GRID), layer(x, GRID)
    torch.manual_seed(1)
    assert not torch.equal(first, second)
    assert torch.equal(first, layer(x, GRID))


@each_dropping
def test_dropped_weights_are_made_up_for_on_average(backend):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, 4, 8)
    draws = 4000
    q, k, v = (tensor.expand(draws, -1, -1, -1) for tensor in (q, k, v))
    mean = attend(q, k, v, dropout_p=0.25, backend=backend).mean(0)
    expected = attend(q[:1], k[:1], v[:1], backend="reference")[0]
    torch.testing.assert_close(mean, expected, atol=0.05, rtol=0)


def test_a_backend_that_cannot_drop_refuses_training_and_says_who_can():
    layer = build("sdpa_flash").train()
    with pytest.raises(Refused, match=r"cannot drop attention weights; .*reference.* can"):
        layer(torch.randn(2, 15, 12), GRID)
