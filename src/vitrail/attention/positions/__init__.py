"""Ways to tell attention where a token sits, one file each, and the two places they speak in.

A position is a frozen description. At the model's entrance it may add to the tokens (`table`,
`embed`); inside each attention layer, the module that `layer` makes may turn q and k, widen them,
or add a bias to the scores.
"""

import math
from dataclasses import dataclass, replace

from torch import Tensor, nn

from vitrail.attention.grid import Grid
from vitrail.errors import UserError


class LayerPosition(nn.Module):
    """What a position does inside one attention layer; this one does nothing."""

    def rotate(self, q: Tensor, k: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
        """q and k, (B, h, N, d) each, turned by where their tokens sit."""
        return q, k

    def widen(self, q: Tensor, k: Tensor, tile: Grid, places, scale) -> tuple[Tensor, Tensor]:
        """q and k, (B, h, N, d) each, with columns whose products add to the scaled scores.

        tile, places: as `Pattern` gives them, the grid that is one tile, and the row and column in
        its tile of each token on the map, (area,) each. scale: what scores are multiplied by later,
        a number or (h, 1, 1); products are to be divided by it.
        """
        return q, k

    def bias(self, tile: Grid) -> Tensor | None:
        """(1, h, T, T) to be added to the scaled scores of one tile of T tokens, or None."""
        return None


class Position:
    """The contract; each default says nothing about where a token sits."""

    def for_grid(self, grid: Grid) -> "Position":
        """The same position, told the grid that the model is built for."""
        return self

    def table(self, dim: int) -> nn.Parameter | None:
        """A learned table for the model's entrance, which the model owns as `pos_embed`."""
        return None

    def embed(self, x: Tensor, table: Tensor | None, grid: Grid) -> Tensor:
        """Tokens (B, N, C), prefix first, with the position added."""
        return x

    def layer(self, heads: int, width: int) -> LayerPosition:
        """The module for one attention layer of `heads` heads, each `width` wide."""
        return LayerPosition()


@dataclass(frozen=True)
class OnGrid(Position):
    """A position whose layers have tables for the differences on `grid`, which a model tells."""

    grid: Grid | None = None

    def for_grid(self, grid: Grid) -> "OnGrid":
        return replace(self, grid=grid)

    def known_grid(self) -> Grid:
        """The grid, or UserError where nobody told it."""
        if self.grid is None:
            name, file = type(self).__name__, type(self).__module__.rpartition(".")[2]
            raise UserError(
                f"position={file} has tables as large as its grid and was given none; say which, "
                f"as in {name}(grid=Grid(7, 7))"
            )
        return self.grid


def check_temperature(temperature: float) -> None:
    """Raise UserError for what wavelengths cannot be spaced by."""
    if not 0 < temperature < math.inf:
        raise UserError(f"position.temperature must be a number above 0, got {temperature}")


def check_width(name: str, width: int, axes: str) -> None:
    """Raise UserError for a width that does not split into pairs by row and by column."""
    if width % 4:
        below = width // 4 * 4
        raise UserError(
            f"position={name} needs a {axes} that is a multiple of 4, got {width}; "
            f"use {f'{below} or ' if below else ''}{below + 4}"
        )
