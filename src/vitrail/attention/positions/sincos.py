"""Fixed sines and cosines of row and column (MAE, He et al. 2021, `get_2d_sincos_pos_embed`)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.attention.grid import Grid
from vitrail.attention.positions import Position, check_temperature, check_width


def sincos_table(grid: Grid, dim: int, temperature: float, device: torch.device | None) -> Tensor:
    """(N, dim) fp32: sin and cos of the column, then of the row; prefix rows are 0."""
    check_width("sincos", dim, "dim")
    rows, cols = grid.coordinates(device)
    frequency = temperature ** -(torch.arange(dim // 4, device=device).float() / (dim // 4))
    angles = [place[:, None] * frequency for place in (cols, rows)]  # (area, dim/4) each
    table = torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], dim=1)
    return F.pad(table, (0, 0, grid.prefix, 0))


@dataclass(frozen=True)
class SinCos(Position):
    """Has no weights and is exact on every grid."""

    temperature: float = 10_000.0

    def __post_init__(self):
        check_temperature(self.temperature)

    def embed(self, x: Tensor, table: Tensor | None, grid: Grid) -> Tensor:
        return x + sincos_table(grid, x.shape[-1], self.temperature, x.device).to(x.dtype)
