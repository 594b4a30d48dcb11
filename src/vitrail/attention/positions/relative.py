"""A learned number a head for each difference of places, added to the scores: the relative bias.

Table, index and names are those of Swin (Liu et al. 2021) and BEiT (Bao et al. 2021).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.attention.grid import Grid
from vitrail.attention.positions import LayerPosition, OnGrid
from vitrail.errors import UserError

PREFIX_ENTRIES = 3  # prefix -> map, map -> prefix, prefix -> prefix, shared by all prefix tokens


def table_length(grid: Grid) -> int:
    """One entry a difference of places, and three more where there are prefix tokens."""
    return (2 * grid.rows - 1) * (2 * grid.cols - 1) + (PREFIX_ENTRIES if grid.prefix else 0)


def relative_index(grid: Grid, device: torch.device | None = None) -> Tensor:
    """(T, T) int64, which entry of the table query (row) and key (column) take.

    (row - row' + rows - 1)(2 cols - 1) + col - col' + cols - 1 on the map. Prefix tokens come first
    among tokens and take the last three entries, in BEiT's order.
    """
    rows, cols = grid.coordinates(device)
    place = rows * (2 * grid.cols - 1) + cols
    # The formula is linear, so one subtraction of flat places does for rows and columns together.
    index = place[:, None] - place[None, :] + place[-1]
    if grid.prefix:
        end = table_length(grid)
        index = F.pad(index, (grid.prefix, 0, grid.prefix, 0))
        index[: grid.prefix] = end - 3
        index[:, : grid.prefix] = end - 2
        index[: grid.prefix, : grid.prefix] = end - 1
    return index


def resample_relative(table: Tensor, old: Grid, new: Grid) -> Tensor:
    """(table_length(old), h) -> (table_length(new), h): bicubic, antialiased, in at least fp32.

    The differences are resampled as a map, as in timm's `resize_rel_pos_bias_table_levit`; what
    prefix tokens take stays as it is. Raises UserError when only `new` has prefix tokens.
    """
    if new.prefix and not old.prefix:
        raise UserError(
            f"position=relative was built without prefix tokens and is used with {new.prefix}; "
            f"build it with them: RelativeBias(grid=Grid({old.rows}, {old.cols}, {new.prefix}))"
        )
    area = (2 * old.rows - 1) * (2 * old.cols - 1)
    entries, prefix = table[:area], table[area:] if new.prefix else table[:0]
    if (old.rows, old.cols) != (new.rows, new.cols):
        precise = torch.promote_types(table.dtype, torch.float32)
        image = entries.to(precise).t().unflatten(1, (2 * old.rows - 1, 2 * old.cols - 1))
        size = (2 * new.rows - 1, 2 * new.cols - 1)
        image = F.interpolate(image[None], size=size, mode="bicubic", antialias=True)[0]
        entries = image.flatten(1).t().to(table.dtype)
    return torch.cat([entries, prefix])


class BiasTable(LayerPosition):
    """Holds `relative_position_bias_table`, (table_length(grid), h)."""

    def __init__(self, heads: int, grid: Grid):
        super().__init__()
        self.grid = grid
        table = nn.init.trunc_normal_(torch.empty(table_length(grid), heads), std=0.02)
        self.relative_position_bias_table = nn.Parameter(table)

    def bias(self, tile: Grid) -> Tensor:
        table = resample_relative(self.relative_position_bias_table, self.grid, tile)
        index = relative_index(tile, table.device)
        # Along the last axis of (h, entries): several times faster than to index rows of h numbers.
        bias = table.t().gather(1, index.flatten().expand(table.shape[1], -1))
        return bias.unflatten(1, index.shape)[None]


class RelativeBias(OnGrid):
    """One table for all differences, a number a head."""

    def layer(self, heads: int, width: int) -> BiasTable:
        return BiasTable(heads, self.known_grid())
