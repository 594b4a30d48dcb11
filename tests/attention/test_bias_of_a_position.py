"""A position may speak through a bias of its own, which joins the one that a call gives."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from vitrail.attention import Grid, MultiHeadAttention2d
from vitrail.attention.backends import Refused
from vitrail.attention.positions import LayerPosition, Position

from .cases import ON_CPU

GRID = Grid(2, 3, 1)


class OneNumberAPair(LayerPosition):
    """A learned bias for each head and pair of tokens of one grid."""

    def __init__(self, heads: int):
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, heads, GRID.tokens, GRID.tokens))

    def bias(self, grid: Grid) -> torch.Tensor:
        return self.table


@dataclass(frozen=True)
class LearnedBias(Position):
    """The recipe of `OneNumberAPair`."""

    def layer(self, heads: int, width: int) -> LayerPosition:
        return OneNumberAPair(heads)


def build(backend: str) -> MultiHeadAttention2d:
    torch.manual_seed(0)
    return MultiHeadAttention2d(12, 3, position=LearnedBias(), backend=backend)


LEARNS_BIAS = [name for name in ON_CPU if name != "sdpa_flash"]


@pytest.mark.parametrize("backend", LEARNS_BIAS)
def test_the_bias_of_a_position_and_the_one_given_add_up(backend):
    layer = build(backend)
    plain = MultiHeadAttention2d(12, 3, backend=backend)
    plain.load_state_dict(layer.state_dict(), strict=False)
    x = torch.randn(2, GRID.tokens, 12)
    given = torch.randn(2, 1, GRID.tokens, GRID.tokens)
    own = layer.position.table.detach()
    torch.testing.assert_close(layer(x, GRID), plain(x, GRID, bias=own), atol=1e-6, rtol=0)
    torch.testing.assert_close(
        layer(x, GRID, bias=given), plain(x, GRID, bias=own + given), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("backend", LEARNS_BIAS)
def test_the_bias_of_a_position_learns_except_from_pairs_that_are_hidden(backend):
    layer = build(backend)
    valid = torch.tensor([[[True, True, False], [True, True, True]]])
    layer(torch.randn(1, GRID.tokens, 12), GRID, valid=valid).square().sum().backward()
    gradient = layer.position.table.grad
    assert (gradient[..., 3] == 0).all()  # token 3 is row 0, column 2, behind one prefix token
    assert (gradient[..., [0, 1, 2, 4, 5, 6]].abs() > 0).all()


def test_a_backend_without_its_gradient_is_refused_for_training_and_serves_evaluation():
    layer = build("sdpa_flash")
    x = torch.randn(2, GRID.tokens, 12)
    with pytest.raises(Refused, match="cannot give the gradient of a bias"):
        layer(x, GRID)
    with torch.no_grad():
        torch.testing.assert_close(layer(x, GRID), build("reference")(x, GRID), atol=1e-5, rtol=0)
