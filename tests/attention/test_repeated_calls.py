"""What a call asks for; what it has proved is not asked again, and what differs is."""

import pytest
import torch

from vitrail.attention import Grid, Mask, MultiHeadAttention2d, attend, attention, backends
from vitrail.attention.backends import Refused, Request
from vitrail.attention.patterns import GridPattern
from vitrail.attention.patterns.axial import Axial
from vitrail.attention.patterns.neighborhood import Neighborhood

Q = torch.randn(2, 3, 15, 8)


@pytest.fixture
def resolved(monkeypatch) -> list[Request]:
    """Every request that is resolved; nothing is known at first."""
    requests, resolve = [], backends.resolve
    monkeypatch.setattr(attention, "_checked", {})

    def listen(request, backend):
        requests.append(request)
        return resolve(request, backend)

    monkeypatch.setattr(backends, "resolve", listen)
    return requests


def test_an_equal_call_is_resolved_once(resolved):
    for _ in range(3):
        attend(Q, Q, Q, mask=Mask(valid=torch.ones(2, 15, dtype=torch.bool)))
    assert len(resolved) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"q": Q.requires_grad_(False).clone().requires_grad_()},
        {"q": torch.randn(2, 3, 14, 8)},
        {"bias": torch.zeros(1, 1, 15, 15)},
        {"bias": torch.zeros(1, 1, 15, 15, requires_grad=True)},
        {"mask": torch.ones(1, 1, 15, 15, dtype=torch.bool)},
        {"mask": Mask(pattern=GridPattern(Axial("both"), Grid(3, 5)))},
        {"dropout_p": 0.5},
        {"backend": "eager"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_call_that_differs_is_resolved_anew(resolved, other):
    attend(Q, Q, Q)
    arguments = {"q": Q} | other
    attend(arguments.pop("q"), Q, Q, **arguments)
    assert len(resolved) == 2


def test_what_was_refused_is_refused_again():
    attend(Q, Q, Q, backend="sdpa_flash")
    for _ in range(2):
        with pytest.raises(Refused, match="backend=sdpa_flash cannot drop attention weights"):
            attend(Q, Q, Q, dropout_p=0.5, backend="sdpa_flash")
        with pytest.raises(ValueError, match="do not fit together"):
            attend(Q, Q[:, :, :-1], Q, backend="sdpa_flash")


def test_few_calls_are_remembered(monkeypatch):
    monkeypatch.setattr(attention, "_checked", {})
    monkeypatch.setattr(attention, "MOST_CHECKED", 4)
    for tokens in range(1, 20):
        attend(Q[:, :, :tokens], Q, Q)
    assert len(attention._checked) <= 4


def test_a_pattern_that_is_not_regrouped_makes_its_mask_once_a_grid_and_device():
    rule = GridPattern(Axial("both"), Grid(5, 7, 1))
    cpu, meta = torch.device("cpu"), torch.device("meta")
    with torch.inference_mode():
        first = rule.visible(cpu)
    assert not first.is_inference()  # or training could not save it for backward
    assert rule.visible(cpu) is first
    assert GridPattern(Axial("both"), Grid(5, 7, 1)).visible(cpu) is first
    assert rule.visible(meta).device == meta
    assert GridPattern(Axial("both"), Grid(7, 5, 1)).visible(cpu) is not first


@pytest.mark.usefixtures("fresh_graphs")
@pytest.mark.parametrize("pattern", [Axial("both"), Neighborhood(3)], ids=str)
def test_a_layer_trains_and_compiles_after_inference_mode(pattern):
    grid = Grid(6, 9, 1)
    layer = MultiHeadAttention2d(24, 3, pattern=pattern, backend="eager")
    x = torch.randn(2, grid.tokens, 24)
    with torch.inference_mode():
        expected = layer(x, grid)
    layer(x, grid).sum().backward()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, grid), expected.clone(), atol=1e-6, rtol=0)


def test_a_request_tells_a_learned_bias_from_a_fixed_one(asked):
    layer = MultiHeadAttention2d(12, 3, backend="reference")
    x = torch.randn(2, 16, 12)
    bias = torch.zeros(16, 16)
    mask = torch.ones(16, 16, dtype=torch.bool)
    layer(x, Grid(3, 5, 1), bias=bias)
    layer(x, Grid(3, 5, 1), bias=bias.clone().requires_grad_(), mask=mask)
    with torch.no_grad():
        layer(x, Grid(3, 5, 1), bias=bias.clone().requires_grad_())
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
