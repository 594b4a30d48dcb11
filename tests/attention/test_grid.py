"""A grid maps tokens to rows and columns, row by row, behind its prefix."""

import pytest
import torch

from vitrail.attention import Grid


def test_token_prefix_plus_row_times_cols_plus_col_lies_at_row_and_col():
    grid = Grid(3, 5, 4)
    image = torch.arange(grid.area).reshape(grid.rows, grid.cols)
    rows, cols = grid.coordinates()
    for token in range(grid.prefix, grid.tokens):
        place = token - grid.prefix
        assert image[rows[place], cols[place]] == place
    assert (grid.area, grid.tokens) == (15, 19)


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (-1, 3), (2, 2, -1)])
def test_an_empty_grid_is_refused(sizes):
    with pytest.raises(ValueError, match=r"^Grid\(rows=.* is empty; use at least one row"):
        Grid(*sizes)
