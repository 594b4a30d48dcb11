"""Heads divide the width, or the layer says which numbers of heads would."""

import pytest

from vitrail.attention import MultiHeadAttention2d, SelfAttention2d
from vitrail.attention.attention import head_width


@pytest.mark.parametrize("layer", [MultiHeadAttention2d, SelfAttention2d])
def test_heads_that_do_not_divide_the_width_are_refused_when_the_layer_is_built(layer):
    with pytest.raises(
        ValueError, match=r"^dim=100 does not split over heads=3; use 2, 4 or 5 heads$"
    ):
        layer(100, 3)


@pytest.mark.parametrize(
    "dim, heads, way_out",
    [
        (192, 5, "use 3, 4 or 6 heads"),
        (64, 0, "use 1, 2 or 4 heads"),
        (64, -2, "use 1, 2 or 4 heads"),
        (64, 100, "use 16, 32 or 64 heads"),
        (7, 3, "use 1 or 7 heads"),
        (1, 2, "use 1 head"),
        (0, 2, "use a positive dim"),
        (-8, 2, "use a positive dim"),
    ],
)
def test_the_way_out_names_heads_that_do_divide(dim, heads, way_out):
    with pytest.raises(ValueError, match=f"{way_out}$"):
        head_width(dim, heads)


def test_head_width_is_dim_over_heads():
    assert head_width(192, 3) == 64
    assert head_width(24, 4) == 6
    assert head_width(5, 5) == 1
