"""Neighbourhoods: a token sees the k x k tokens around it (NATTEN, Hassani et al. 2023)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from vitrail.attention.grid import Grid
from vitrail.attention.patterns import Call, Coordinates, Pattern, Regrouped, by_axis, plain_sizes

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
        form = "b h (down r m) (across c n) d -> b (m down n across) h (r c) d"  # groups m, n
        sizes = {"r": rows.tile, "c": cols.tile, "m": rows.dilation, "n": cols.dilation}
        return rearrange(x, form, **sizes)

    def keys(self, x: Tensor, grid: Grid) -> Tensor:
        rows, cols = self._axes(grid)
        x = x.unflatten(2, (grid.rows, grid.cols))
        if self.overhangs(grid):
            x = F.pad(x, (0, 0, 0, cols.overhang, 0, rows.overhang))
        x = x.index_select(2, rows.around(x.device)).index_select(3, cols.around(x.device))
        form = "b h (down r) (across c) d -> b (down across) h (r c) d"
        return rearrange(x, form, r=rows.span, c=cols.span)

    def ungrouped(self, x: Tensor, grid: Grid) -> Tensor:
        rows, cols = self._axes(grid)
        form = "(b m down n across) h (r c) d -> b h (down r m) (across c n) d"
        sizes = {"r": rows.tile, "m": rows.dilation, "n": cols.dilation}
        x = rearrange(x, form, **sizes, down=rows.tiles, across=cols.tiles)
        return x[:, :, : grid.rows, : grid.cols].flatten(2, 3)

    def overhangs(self, grid: Grid) -> bool:
        return any(axis.overhang for axis in self._axes(grid))

    def _computed_as(self, grid: Grid) -> type[Pattern]:
        """In tiles, or by the rule itself where the keys around each tile are the whole map."""
        whole = all(axis.span == axis.length for axis in self._axes(grid))
        return Pattern if whole else Regrouped

    def _axes(self, grid: Grid) -> tuple["_Axis", "_Axis"]:
        grid = plain_sizes(grid)
        lengths = (grid.rows, grid.cols)
        rows, cols = map(_Axis, lengths, self.kernel, self.dilation)
        return rows, cols


class _Axis:
    """One axis of a map: its groups by dilation, and each group in tiles of queries."""

    def __init__(self, length: int, kernel: int, dilation: int):
        self.length, self.kernel, self.dilation = length, kernel, dilation
        self.longest = -(-length // dilation)  # tokens in the longest group
        self.tile = min(TILE, self.longest)  # queries in a tile
        self.tiles = -(-self.longest // self.tile)  # tiles in a group
        self.padded = self.tiles * self.tile * dilation  # the length where every tile is full
        self.overhang = -length % dilation  # tokens that the shorter groups lack
        # Keys around a tile: the neighbourhoods of all its queries, in a group of any length.
        self.span = min(self.tile + kernel - 1, self.longest)

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """Bool for int indices along the axis that broadcast."""
        step = self.dilation
        group = (self.length - query % step + step - 1) // step  # tokens in the query's group
        start = torch.minimum(query // step - self.kernel // 2, group - self.kernel).clamp(min=0)
        near = (key // step >= start) & (key // step < start + self.kernel)
        return near & (key % step == query % step)

    def around(self, device: torch.device) -> Tensor:
        """Indices along the axis of the keys around each tile, (groups * tiles * span,)."""
        first = torch.arange(self.tiles, device=device) * self.tile - self.kernel // 2
        first = first.clamp(0, self.longest - self.span)
        inside = first[:, None] + torch.arange(self.span, device=device)  # (tiles, span)
        group = torch.arange(self.dilation, device=device)[:, None, None]
        return (inside * self.dilation + group).flatten()
