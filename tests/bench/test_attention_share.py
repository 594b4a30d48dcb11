"""The share of a step that is attention: counted forward and backward, and nothing beside it."""

import pytest
import torch
from torch import nn

from vitrail.attention import Grid, MultiHeadAttention2d
from vitrail.attention.backends import Backend
from vitrail.bench.attention_share import attention_share

GRID = Grid(2, 3)
HEAVY = torch.randn(600, 600) / 25  # a product that takes far longer than the layer around it


class Busy(Backend):
    """Works hard forward, backward or not at all, and gives v."""

    name = "busy"

    def __init__(self, *, forward: bool, backward: bool):
        self._forward, self._backward = forward, backward

    def refuse(self, request):
        return []

    def __call__(self, q, k, v, *, mask, bias, scale, dropout_p):
        if self._forward:
            with torch.no_grad():
                work()
        return HardToDerive.apply(v) if self._backward else v * 1.0


class HardToDerive(torch.autograd.Function):
    @staticmethod
    def forward(context, v):
        return v.clone()

    @staticmethod
    def backward(context, gradient):
        work()
        return gradient.clone()


def work() -> None:
    for _ in range(10):
        HEAVY @ HEAVY


class Beside(nn.Module):
    """An attention layer, with hard work before it where that is asked for."""

    def __init__(self, backend: Backend, *, busy: bool):
        super().__init__()
        self.attn, self.busy = MultiHeadAttention2d(12, 3, backend="reference"), busy
        self.attn.backend = backend

    def forward(self, x):
        if self.busy:
            work()
        return self.attn(x, GRID)


def share(network: nn.Module) -> float | None:
    x = torch.randn(2, GRID.tokens, 12)

    def step():
        network(x).sum().backward()

    step()
    return attention_share(network, step, device="cpu")


@pytest.mark.parametrize("forward, backward", [(True, False), (False, True), (True, True)])
def test_what_a_backend_does_forward_and_backward_is_attention(forward, backward):
    assert share(Beside(Busy(forward=forward, backward=backward), busy=False)) > 0.8


def test_what_the_rest_of_a_step_does_is_not():
    assert share(Beside(Busy(forward=False, backward=False), busy=True)) < 0.2


def test_the_backends_are_the_same_afterwards():
    network = Beside(Busy(forward=False, backward=False), busy=False)
    backend = network.attn.backend
    share(network)
    assert network.attn.backend is backend


def test_attention_that_torch_is_asked_for_directly_counts_too():
    class Direct(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, x):
            x = self.linear(x)
            return nn.functional.scaled_dot_product_attention(x, x, x)

    network, x = Direct(), torch.randn(4, 400, 64)
    found = attention_share(network, lambda: network(x).sum().backward(), device="cpu")
    assert 0.5 < found < 1


def test_no_share_is_told_where_no_attention_is_seen():
    linear, x = nn.Linear(4, 4), torch.randn(2, 4)
    assert attention_share(linear, lambda: linear(x).sum().backward(), device="cpu") is None
    assert attention_share(linear, lambda: linear(x), device="mps") is None
