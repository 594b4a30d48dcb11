"""Rotary position embedding in two dimensions: pairs of q and k turn by row and column.

Axial (equal to timm's `RotaryEmbeddingCat(in_pixels=False, grid_indexing="xy")`): pairs are
interleaved, the first half of them turns by the column, the second by the row. Mixed (Heo et al.
2024, arXiv:2403.13298; timm's `RotaryEmbeddingMixed`): every head of every layer learns its own
directions. Tables stay fp32.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.attention.grid import Grid
from vitrail.attention.positions import LayerPosition, Position, check_temperature, check_width


def turn(x: Tensor, angles: Tensor) -> Tensor:
    """x (B, h, N, d) with pair i of each token turned by `angles` (1|h, N, d/2), in radians."""
    sin = angles.sin().repeat_interleave(2, dim=-1)
    cos = angles.cos().repeat_interleave(2, dim=-1)
    quarter = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)  # turned by 90 degrees
    return (x * cos + quarter * sin).to(x.dtype)


def angles_on(grid: Grid, frequencies: Tensor) -> Tensor:
    """(2, 1|h, d/2) frequencies by column and row -> (1|h, N, d/2) fp32, 0 for prefix tokens."""
    rows, cols = grid.coordinates(frequencies.device)
    by_col, by_row = frequencies.float()
    angles = cols[:, None] * by_col[:, None, :] + rows[:, None] * by_row[:, None, :]
    return F.pad(angles, (0, 0, grid.prefix, 0))


def axial_frequencies(width: int, temperature: float, device: torch.device | None = None) -> Tensor:
    """(2, 1, d/2), f_i = temperature**(-4i/d): the first d/4 pairs by column, the others by row."""
    band = temperature ** -(torch.arange(0, width, 4, device=device).float() / width)  # (d/4,)
    still = torch.zeros_like(band)
    return torch.stack([torch.cat([band, still]), torch.cat([still, band])])[:, None]


def mixed_frequencies(heads: int, width: int, temperature: float) -> Tensor:
    """(2, h, d/2): the axial bands at a random angle a head, half of them 90 degrees further."""
    band = temperature ** -(torch.arange(0, width, 4).float() / width)
    start = torch.rand(heads, 1) * 2 * torch.pi
    start = start.expand(-1, len(band))
    direction = torch.cat([start, start + torch.pi / 2], dim=1)
    return torch.stack([direction.cos(), direction.sin()]) * band.repeat(2)


class AxialRotation(LayerPosition):
    """Turns q and k in at least fp32."""

    def __init__(self, temperature: float):
        super().__init__()
        self.temperature = temperature

    def rotate(self, q: Tensor, k: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
        # Products and waves, none of which autocast casts.
        angles = angles_on(grid, self.turns(q))
        return turn(q, angles), turn(k, angles)

    def turns(self, q: Tensor) -> Tensor:
        """(2, 1|h, d/2) frequencies; no buffer, which a model cast to bf16 would round."""
        return axial_frequencies(q.shape[-1], self.temperature, q.device)


class MixedRotation(AxialRotation):
    """Learns its frequencies, (2, h, d/2)."""

    def __init__(self, heads: int, width: int, temperature: float):
        super().__init__(temperature)
        self.frequencies = nn.Parameter(mixed_frequencies(heads, width, temperature))

    def turns(self, q: Tensor) -> Tensor:
        return self.frequencies


@dataclass(frozen=True)
class Rope(Position):
    """Axial rotation without weights."""

    temperature: float = 100.0

    def __post_init__(self):
        check_temperature(self.temperature)

    def layer(self, heads: int, width: int) -> LayerPosition:
        check_width("rope", width, "head width")
        return AxialRotation(self.temperature)


@dataclass(frozen=True)
class RopeMixed(Rope):
    """Rotation along directions that each head of each layer learns."""

    temperature: float = 10.0

    def layer(self, heads: int, width: int) -> LayerPosition:
        check_width("rope_mixed", width, "head width")
        return MixedRotation(heads, width, self.temperature)
