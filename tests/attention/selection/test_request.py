"""A request tells all that decides who can serve a call."""

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


def test_a_request_tells_a_learned_bias_from_a_fixed_one(asked):
    layer = MultiHeadAttention2d(12, 3, backend="reference")
    x = torch.randn(2, GRID.tokens, 12)
    bias = torch.zeros(GRID.tokens, GRID.tokens)
    mask = torch.ones(GRID.tokens, GRID.tokens, dtype=torch.bool)
    layer(x, GRID, bias=bias)
    layer(x, GRID, bias=bias.clone().requires_grad_(), mask=mask)
    with torch.no_grad():
        layer(x, GRID, bias=bias.clone().requires_grad_())
    assert [(r.bias, r.bias_grad, r.masks, r.backward) for r in asked] == [
        (True, False, frozenset(), True),
        (True, True, {"mask"}, True),
        (True, False, frozenset(), False),
    ]


def test_a_request_counts_queries_and_keys_apart():
    q, k = torch.randn(2, 3, 1, 8), torch.randn(2, 3, 15, 8)
    request = Request.of(q, k, k, Mask(), None, 0.0)
    assert (request.queries, request.keys) == (1, 15)
    assert (request.batch, request.heads, request.width) == (2, 3, 8)
    assert not request.backward
