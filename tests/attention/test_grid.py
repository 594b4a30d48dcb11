"""A grid maps tokens to rows and columns, row by row, behind its prefix."""

import pytest
import torch

from vitrail.attention import Grid


def test_tokens_are_read_row_by_row():
    rows, cols = Grid(2, 3).coordinates()
    assert rows.tolist() == [0, 0, 0, 1, 1, 1]
    assert cols.tolist() == [0, 1, 2, 0, 1, 2]


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


def test_equal_grids_are_one_key():
    assert {Grid(2, 3): "a"}[Grid(2, 3, 0)] == "a"
    assert Grid(2, 3) != Grid(3, 2)
