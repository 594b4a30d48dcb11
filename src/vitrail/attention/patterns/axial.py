"""Rows and columns of the map, one of them or both at once."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.attention.grid import Grid
from vitrail.attention.patterns import Call, Coordinates, Pattern
from vitrail.attention.patterns.window import Window
from vitrail.errors import UserError


@dataclass(frozen=True)
class Axial(Pattern):
    """axis: a token sees its own row (`rows`), its own column (`cols`), or both at once (`both`).

    Both at once is criss-cross attention (CCNet, Huang et al. 2019). Rows and columns share one
    softmax there: it is not a sum of smaller calls, and it costs N² like full attention. The form
    with a cost of N * (rows + cols) is a plan of two layers, `rows` and then `cols`
    (Axial-DeepLab, Wang et al. 2020).
    """

    axis: str = "rows"

    def __post_init__(self):
        if self.axis not in ("rows", "cols", "both"):
            raise UserError(f"axis must be rows, cols or both, got {self.axis}")

    @classmethod
    def examples(cls) -> list["Axial"]:
        return [cls("rows"), cls("cols"), cls("both")]

    def sees(self, query: Coordinates, key: Coordinates, grid: Grid) -> Tensor:
        return self._on(grid).sees(query, key, grid)

    def tile(self, grid: Grid) -> Grid:
        return self._on(grid).tile(grid)

    def places(self, grid: Grid, device: torch.device) -> Coordinates:
        return self._on(grid).places(grid, device)

    def split(self, whole: Call, tile_bias: Tensor | None, grid: Grid) -> list[Call]:
        return self._on(grid).split(whole, tile_bias, grid)

    def join(self, outs: list[Tensor], grid: Grid) -> Tensor:
        return self._on(grid).join(outs, grid)

    def _on(self, grid: Grid) -> Pattern:
        """A row is a window as wide as the map, a column one as high."""
        if self.axis == "both":
            return _CrissCross()
        return Window((1, grid.cols) if self.axis == "rows" else (grid.rows, 1))


@dataclass(frozen=True)
class _CrissCross(Pattern):
    def sees(self, query: Coordinates, key: Coordinates, grid: Grid) -> Tensor:
        return (query[0] == key[0]) | (query[1] == key[1])
