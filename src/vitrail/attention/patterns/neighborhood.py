"""Neighbourhoods: a token sees the k x k tokens around it (NATTEN, Hassani et al. 2023)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.attention.grid import Grid
from vitrail.attention.patterns import (
    Call,
    Coordinates,
    Pattern,
    Regrouped,
    by_axis,
    with_plain_sizes,
)

TILE = 8  # queries along an axis that share their keys; 4 was slower, with kernels of 3 and of 7


@dataclass(frozen=True)
class Neighborhood(Regrouped):
    """The `kernel` tokens around each along an axis, `dilation` apart; each an int or (rows, cols).

    The tokens of an axis whose index has one remainder by the dilation form a group. In a group of
    L, the i-th token sees `kernel` = k of them from start = clamp(i - k//2, 0, L - k) on: at an
    edge the neighbourhood is pushed inwards and keeps its size (Hassani et al. 2023,
    arXiv:2204.07143; dilation: Hassani & Shi 2022, arXiv:2209.15001). Where k > L the whole group
    is seen; NATTEN refuses such maps, but images that differ in shape make them.

    It is computed in tiles of queries, each with a mask and the keys around it, so that cost grows
    with N, unless the keys around a tile are the whole map.
    """

    kernel: int | tuple[int, int] = 3
    dilation: int | tuple[int, int] = 1

    exact = False

    def __post_init__(self):
        # As pairs, so that lists from a config become hashable.
        object.__setattr__(self, "kernel", by_axis("kernel", self.kernel, minimum=1))
        object.__setattr__(self, "dilation", by_axis("dilation", self.dilation, minimum=1))

    @classmethod
    def examples(cls) -> list["Neighborhood"]:
        return [cls(3), cls(3, dilation=2), cls((4, 5), dilation=(1, 2))]

    def sees(self, query: Coordinates, key: Coordinates, grid: Grid) -> Tensor:
        rows, cols = self._axes(grid)
        return rows.sees(query[0], key[0]) & cols.sees(query[1], key[1])

    def split(self, whole: Call, tile_bias: Tensor | None, grid: Grid) -> list[Call]:
        return self._computed_as(grid).split(self, whole, tile_bias, grid)

    def join(self, outs: list[Tensor], grid: Grid) -> Tensor:
        return self._computed_as(grid).join(self, outs, grid)

    def queries(self, x: Tensor, grid: Grid) -> Tensor:
        rows, cols = self._axes(grid)
        x = x.unflatten(2, (grid.rows, grid.cols))
        x = F.pad(x, (0, 0, 0, cols.padded - grid.cols, 0, rows.padded - grid.rows))
        x = x.unflatten(3, (cols.tiles, cols.tile, cols.dilation))
        x = x.unflatten(2, (rows.tiles, rows.tile, rows.dilation))
        x = x.permute(0, 4, 2, 7, 5, 1, 3, 6, 8)  # (B, (group, tile) * 2, h, rows, cols, d)
        return x.flatten(6, 7).flatten(1, 4)

    def keys(self, x: Tensor, grid: Grid) -> Tensor:
        rows, cols = self._axes(grid)
        x = x.unflatten(2, (grid.rows, grid.cols))
        if self.overhangs(grid):
            x = F.pad(x, (0, 0, 0, cols.overhang, 0, rows.overhang))
        x = x.index_select(2, rows.around(x.device)).index_select(3, cols.around(x.device))
        x = x.unflatten(3, (-1, cols.span)).unflatten(2, (-1, rows.span))
        x = x.permute(0, 2, 4, 1, 3, 5, 6)  # (B, tiles down, tiles across, h, rows, cols, d)
        return x.flatten(4, 5).flatten(1, 2)

    def ungrouped(self, x: Tensor, grid: Grid) -> Tensor:
        rows, cols = self._axes(grid)
        groups = (rows.dilation, rows.tiles, cols.dilation, cols.tiles)
        x = x.unflatten(2, (rows.tile, cols.tile)).unflatten(0, (-1, *groups))
        x = x.permute(0, 5, 2, 6, 1, 4, 7, 3, 8)  # (B, h, (tile, place, group) * 2, d)
        x = x.flatten(5, 7).flatten(2, 4)
        return x[:, :, : grid.rows, : grid.cols].flatten(2, 3)

    def overhangs(self, grid: Grid) -> bool:
        return any(axis.overhang for axis in self._axes(grid))

    def _computed_as(self, grid: Grid) -> type[Pattern]:
        """In tiles, or by the rule itself where the keys around each tile are the whole map."""
        whole = all(axis.span == axis.length for axis in self._axes(grid))
        return Pattern if whole else Regrouped

    def _axes(self, grid: Grid) -> tuple["_Axis", "_Axis"]:
        grid = with_plain_sizes(grid)
        return (
            _Axis(grid.rows, self.kernel[0], self.dilation[0]),
            _Axis(grid.cols, self.kernel[1], self.dilation[1]),
        )


@dataclass(frozen=True)
class _Axis:
    """One axis of a map: its groups by dilation, and each group in tiles of queries."""

    length: int
    kernel: int
    dilation: int

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """Bool for int indices along the axis that broadcast."""
        step = self.dilation
        group = (self.length - query % step + step - 1) // step  # tokens in the query's group
        start = torch.minimum(query // step - self.kernel // 2, group - self.kernel).clamp(min=0)
        near = (key // step >= start) & (key // step < start + self.kernel)
        return near & (key % step == query % step)

    @property
    def longest(self) -> int:
        """Tokens in the longest group."""
        return -(-self.length // self.dilation)

    @property
    def tile(self) -> int:
        """Queries in a tile."""
        return min(TILE, self.longest)

    @property
    def tiles(self) -> int:
        """Tiles in a group."""
        return -(-self.longest // self.tile)

    @property
    def padded(self) -> int:
        """Length of the axis when every tile is full."""
        return self.tiles * self.tile * self.dilation

    @property
    def span(self) -> int:
        """Keys around a tile: the neighbourhoods of all its queries, in a group of any length."""
        return min(self.tile + self.kernel - 1, self.longest)

    @property
    def overhang(self) -> int:
        """Tokens that the shorter groups lack."""
        return -self.length % self.dilation

    def around(self, device: torch.device) -> Tensor:
        """Indices along the axis of the keys around each tile, (groups * tiles * span,)."""
        first = torch.arange(self.tiles, device=device) * self.tile - self.kernel // 2
        first = first.clamp(0, self.longest - self.span)
        inside = first[:, None] + torch.arange(self.span, device=device)  # (tiles, span)
        group = torch.arange(self.dilation, device=device)[:, None, None]
        return (inside * self.dilation + group).flatten()
