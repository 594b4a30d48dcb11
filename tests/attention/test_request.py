"""What a layer will ask of its backend is known before the first batch."""

import pytest
import torch

from vitrail.attention import Grid, Mask, MultiHeadAttention2d, backends
from vitrail.attention.backends import Request

GRID = Grid(3, 5, 1)


@pytest.fixture
def asked(monkeypatch) -> list[Request]:
    """Every request that reaches `backends.resolve`."""
    requests = []
    real = backends.resolve

    def listen(request, backend):
        requests.append(request)
        return real(request, backend)

    monkeypatch.setattr(backends, "resolve", listen)
    return requests


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_plan_is_what_the_forward_asks(asked, padded, training, dtype, dropout):
    layer = MultiHeadAttention2d(12, 3, dropout=dropout, backend="reference").train(training)
    x = torch.randn(2, GRID.tokens, 12)
    real = torch.ones(2, 3, 5, dtype=torch.bool) if padded else None
    with (
        torch.set_grad_enabled(training),
        torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16),
    ):
        layer(x, GRID, padding=real)
    planned = layer.request(
        GRID,
        batch=2,
        device=torch.device("cpu"),
        dtype=dtype,
        padded=padded,
        training=training,
    )
    assert asked == [planned]


def test_a_request_tells_a_learned_bias_from_a_fixed_one(asked):
    layer = MultiHeadAttention2d(12, 3, backend="reference")
    x = torch.randn(2, GRID.tokens, 12)
    bias = torch.zeros(GRID.tokens, GRID.tokens)
    mask = torch.ones(GRID.tokens, GRID.tokens, dtype=torch.bool)
    layer(x, GRID, bias=bias)
    layer(x, GRID, bias=bias.clone().requires_grad_(), mask=mask)
    with torch.no_grad():
        layer(x, GRID, bias=bias.clone().requires_grad_())
    assert [(r.bias, r.bias_grad, r.mask, r.backward) for r in asked] == [
        (True, False, "none", True),
        (True, True, "dense", True),
        (True, False, "none", False),
    ]


def test_a_request_counts_queries_and_keys_apart():
    q, k = torch.randn(2, 3, 1, 8), torch.randn(2, 3, 15, 8)
    request = Request.of(q, k, k, Mask(), None, 0.0)
    assert (request.queries, request.keys) == (1, 15)
    assert (request.batch, request.heads, request.width) == (2, 3, 8)
    assert not request.backward
