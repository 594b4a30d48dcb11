"""A learned absolute table (Dosovitskiy et al. 2020), resampled as a map for other grids."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.attention.grid import Grid
from vitrail.attention.positions import Position
from vitrail.errors import UserError


def resample_table(table: Tensor, old: Grid, new: Grid) -> Tensor:
    """(1, old.tokens, C) -> (1, new.tokens, C): bicubic, antialiased, fp32, prefix untouched.

    Equal to timm's `resample_abs_pos_embed`. Raises UserError when the prefix rows differ in
    number.
    """
    if old.prefix != new.prefix:
        raise UserError(
            f"the position table has {old.prefix} prefix rows and the model {new.prefix}; "
            "build the model with the same class token and registers"
        )
    if (old.rows, old.cols) == (new.rows, new.cols):
        return table
    prefix, grid_rows = table[:, : old.prefix], table[:, old.prefix :]
    image = grid_rows.float().unflatten(1, (old.rows, old.cols)).permute(0, 3, 1, 2)  # (1, C, H, W)
    image = F.interpolate(image, size=(new.rows, new.cols), mode="bicubic", antialias=True)
    grid_rows = image.permute(0, 2, 3, 1).flatten(1, 2).to(table.dtype)
    return torch.cat([prefix, grid_rows], dim=1)


@dataclass(frozen=True)
class Learned(Position):
    """One row a token; with `prefix=False` none for class token and registers (no_embed_class)."""

    prefix: bool = True
    grid: Grid | None = None

    def for_grid(self, grid: Grid) -> "Learned":
        return replace(self, grid=self._own(grid))

    def table(self, dim: int) -> nn.Parameter:
        return nn.Parameter(nn.init.trunc_normal_(torch.empty(1, self.grid.tokens, dim), std=0.02))

    def embed(self, x: Tensor, table: Tensor | None, grid: Grid) -> Tensor:
        rows = resample_table(table, self.grid, self._own(grid))  # (1, N, C)
        return x + F.pad(rows, (0, 0, x.shape[1] - rows.shape[1], 0))

    def _own(self, grid: Grid) -> Grid:
        return grid if self.prefix else replace(grid, prefix=0)
