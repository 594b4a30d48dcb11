"""Relative positions that depend on the query, a row's part and a column's part apart.

scores += q · R_h[row - row'] + q · R_w[col - col'], q before it is scaled: MViTv2 (Li et al. 2022,
arXiv:2112.01526, eq. 4) and Segment Anything (Kirillov et al. 2023), whose names the tables have.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.attention.grid import Grid
from vitrail.attention.positions import LayerPosition, OnGrid

MULTIPLE = 8  # fused kernels on CUDA take only head widths that 8 divides


def differences(place: Tensor, size: int) -> Tensor:
    """(n,) places below `size` -> (n, size), the row of a table (2 size - 1, d) for each pair."""
    other = torch.arange(size, device=place.device)
    return place[:, None] - other + size - 1


def decomposed_bias(
    q: Tensor, by_row: Tensor, by_col: Tensor, tile: Grid, places: tuple[Tensor, Tensor]
) -> Tensor:
    """What is added to the scaled scores, (B, h, N, N); 0 where a prefix token asks or is asked.

    q: (B, h, N, d) not scaled. by_row: (2 rows - 1, d), by_col: (2 cols - 1, d), of the tile.
    places: as `Pattern.places` gives them. The plain statement of what `widened` computes.
    """
    rows, cols = places
    table = by_row[differences(rows, tile.rows)[:, rows]]  # (area, area, d)
    table = table + by_col[differences(cols, tile.cols)[:, cols]]
    bias = torch.einsum("bhqd,qkd->bhqk", q[:, :, tile.prefix :], table)
    return F.pad(bias, (tile.prefix, 0, tile.prefix, 0))


def widened(
    q: Tensor, k: Tensor, by_row: Tensor, by_col: Tensor, tile: Grid, places, scale: float | Tensor
) -> tuple[Tensor, Tensor]:
    """q and k, (B, h, N, d' > d) each, so that scale · q kᵀ has `decomposed_bias` in it.

    To q come its products with every row and every column of the tile, over the scale; to k, a 1 at
    its own row and at its own column. So a kernel that adds no bias computes the sum. In halves
    the result is at least as near to exact as with a bias rounded to them: the ones are exact.
    """
    on_map = q[:, :, tile.prefix :]
    asks, answers = [], []
    for table, place, size in zip((by_row, by_col), places, (tile.rows, tile.cols), strict=True):
        # With every difference first, one matrix product, and then the `size` that a place has.
        every = on_map @ (table / scale).to(q.dtype).transpose(-2, -1)
        asks.append(every.gather(-1, differences(place, size).expand(*every.shape[:-1], -1)))
        answers.append(place[:, None] == torch.arange(size, device=place.device))
    fill = -(q.shape[-1] + tile.rows + tile.cols) % MULTIPLE
    q_more = F.pad(torch.cat(asks, -1), (0, fill, tile.prefix, 0))
    k_more = F.pad(torch.cat(answers, -1).to(k.dtype), (0, fill, tile.prefix, 0))
    return (
        torch.cat([q, q_more.to(q.dtype)], -1),
        torch.cat([k, k_more.expand(*k.shape[:-1], -1)], -1),
    )


def resample_axis(table: Tensor, size: int) -> Tensor:
    """(L, d) -> (2 size - 1, d), linear in the difference and in at least fp32, as SAM's."""
    if len(table) == 2 * size - 1:
        return table
    precise = torch.promote_types(table.dtype, torch.float32)
    line = table.to(precise).t()[None]  # (1, d, L)
    return F.interpolate(line, size=2 * size - 1, mode="linear")[0].t().to(table.dtype)


class DecomposedTables(LayerPosition):
    """Holds `rel_pos_h`, (2 rows - 1, d), and `rel_pos_w`, (2 cols - 1, d), for all heads."""

    def __init__(self, width: int, grid: Grid):
        super().__init__()
        self.rel_pos_h = nn.Parameter(torch.zeros(2 * grid.rows - 1, width))
        self.rel_pos_w = nn.Parameter(torch.zeros(2 * grid.cols - 1, width))

    def widen(self, q, k, tile, places, scale):
        by_row = resample_axis(self.rel_pos_h, tile.rows)
        by_col = resample_axis(self.rel_pos_w, tile.cols)
        return widened(q, k, by_row, by_col, tile, places, scale)


class Decomposed(OnGrid):
    """Tables of rows and of columns for all heads of a layer."""

    def layer(self, heads: int, width: int) -> DecomposedTables:
        return DecomposedTables(width, self.known_grid())
