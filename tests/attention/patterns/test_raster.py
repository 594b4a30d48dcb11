"""Reading order: nobody on the map learns of what comes later."""

import torch

from vitrail.attention import Grid, MultiHeadAttention2d
from vitrail.attention.patterns import GridPattern
from vitrail.attention.patterns.raster import Raster


def test_the_mask_is_a_lower_triangle_behind_the_prefix():
    visible = GridPattern(Raster(), Grid(3, 5, 1)).visible(torch.device("cpu"))[0, 0]
    assert torch.equal(visible[1:, 1:], torch.ones(15, 15, dtype=torch.bool).tril())


def test_what_comes_later_changes_nothing_before_it():
    torch.manual_seed(0)
    layer = MultiHeadAttention2d(12, 3, pattern=Raster())
    x = torch.randn(2, 15, 12)
    changed = x.clone()
    changed[:, 8:] = torch.randn(2, 7, 12)  # from row 1, column 3 on
    before, after = layer(x, Grid(3, 5)), layer(changed, Grid(3, 5))
    assert torch.equal(before[:, :8], after[:, :8])
    assert not torch.allclose(before[:, 8:], after[:, 8:], atol=1e-3)
