"""Windows: the map is cut into rectangles, and a token sees its own (Swin, Liu et al. 2021)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from vitrail.attention.grid import Grid
from vitrail.attention.patterns import Coordinates, Regrouped, by_axis, plain_sizes
from vitrail.errors import UserError


@dataclass(frozen=True)
class Window(Regrouped):
    """Windows of `size` tokens, cut `shift` tokens further down and right; each an int or (r, c).

    The token at row r lies in window floor((r - shift) / size), columns alike, and windows at the
    map's edges may be cut off. This equals Swin's cyclic roll with -inf between regions that the
    roll alone brought together, for maps that the size divides; others are as if they had first
    been padded with masked tokens. Along an axis that one window covers there is no shift, as in
    torchvision and timm.
    """

    size: int | tuple[int, int] = 4
    shift: int | tuple[int, int] = 0

    exact = True

    def __post_init__(self):
        size = by_axis("size", self.size, minimum=1)
        shift = by_axis("shift", self.shift, minimum=0)
        if shift[0] >= size[0] or shift[1] >= size[1]:
            raise UserError(
                f"shift={self.shift} moves windows of size={self.size} by one or more of them; "
                "use a smaller shift, such as half the size"
            )
        object.__setattr__(self, "size", size)  # lists from a config become hashable
        object.__setattr__(self, "shift", shift)

    @classmethod
    def examples(cls) -> list["Window"]:
        return [cls(3), cls(3, shift=1), cls((2, 4), shift=(1, 3))]

    def sees(self, query: Coordinates, key: Coordinates, grid: Grid) -> Tensor:
        rows, cols = self._cuts(grid)
        return (rows.piece(query[0]) == rows.piece(key[0])) & (
            cols.piece(query[1]) == cols.piece(key[1])
        )

    def tile(self, grid: Grid) -> Grid:
        rows, cols = self._cuts(grid)
        return Grid(rows.size, cols.size, grid.prefix)

    def places(self, grid: Grid, device: torch.device) -> Coordinates:
        rows, cols = self._cuts(grid)
        row, col = grid.coordinates(device)
        return (row + rows.before) % rows.size, (col + cols.before) % cols.size

    def queries(self, x: Tensor, grid: Grid) -> Tensor:
        rows, cols = self._cuts(grid)
        x = x.unflatten(2, (grid.rows, grid.cols))
        if self.overhangs(grid):
            x = F.pad(x, (0, 0, cols.before, cols.after, rows.before, rows.after))
        form = "b h (down r) (across c) d -> b (down across) h (r c) d"
        return rearrange(x, form, r=rows.size, c=cols.size)

    def keys(self, x: Tensor, grid: Grid) -> Tensor:
        return self.queries(x, grid)

    def ungrouped(self, x: Tensor, grid: Grid) -> Tensor:
        rows, cols = self._cuts(grid)
        form = "(b down across) h (r c) d -> b h (down r) (across c) d"
        x = rearrange(x, form, down=rows.pieces, across=cols.pieces, r=rows.size)
        x = x[:, :, rows.before :, cols.before :][:, :, : grid.rows, : grid.cols]
        return x.flatten(2, 3)

    def overhangs(self, grid: Grid) -> bool:
        return any(cut.before or cut.after for cut in self._cuts(grid))

    def _cuts(self, grid: Grid) -> tuple["_Cut", "_Cut"]:
        grid = plain_sizes(grid)
        (rows, cols), (down, right) = self.size, self.shift
        return (
            _Cut(grid.rows, rows, down) if rows < grid.rows else _Cut(grid.rows, grid.rows, 0),
            _Cut(grid.cols, cols, right) if cols < grid.cols else _Cut(grid.cols, grid.cols, 0),
        )


class _Cut:
    """One axis of a map, cut into pieces of one size of which those at the ends may hang over."""

    def __init__(self, length: int, size: int, shift: int):
        self.size = size
        self.before = -shift % size  # tokens by which the first piece hangs over
        self.pieces = -(-(self.before + length) // size)
        self.after = self.pieces * size - length - self.before  # and those of the last one

    def piece(self, index: Tensor) -> Tensor:
        """The number of the piece that a token lies in."""
        return (index + self.before) // self.size
