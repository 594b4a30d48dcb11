"""A request tells all that decides who can serve a call."""

import torch

from vitrail.attention import Grid, Mask, MultiHeadAttention2d
from vitrail.attention.backends import Request

from ..cases import listen_to_requests

GRID = Grid(3, 5, 1)


def test_a_request_tells_a_learned_bias_from_a_fixed_one(monkeypatch):
    asked = listen_to_requests(monkeypatch)
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
