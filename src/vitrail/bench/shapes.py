"""Shapes of attention calls, and how a config writes them."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitrail.attention import Grid
from vitrail.errors import UserError


@dataclass(frozen=True)
class Shape:
    """(batch, heads, grid.tokens, width); a grid of one row has no map that anybody gave."""

    batch: int
    heads: int
    grid: Grid
    width: int

    @classmethod
    def read(cls, given: Sequence[int | Sequence[int]]) -> "Shape":
        """[batch, heads, tokens, width], whose tokens may be [rows, cols] or [rows, cols, prefix].

        Raises UserError for anything else.
        """
        match given:
            case [int(), int(), int(tokens), int()]:
                sizes, grid = given, [1, tokens]
            case [int(), int(), [int(), int()] | [int(), int(), int()] as grid, int()]:
                sizes = [*given[:2], *grid[:2], given[3]]
            case _:
                sizes = [0]
        if min(sizes) < 1:
            raise UserError(
                f"bench.shapes has {given}; a shape is [batch, heads, tokens, head width], "
                "and tokens may be a map, [rows, cols] or [rows, cols, prefix]"
            )
        return cls(given[0], given[1], Grid(*grid), given[3])

    @property
    def has_map(self) -> bool:
        return self.grid.rows > 1

    def __str__(self) -> str:
        """`(64, 3, 197, 64)`, and the map behind it where there is one."""
        sizes = f"({self.batch}, {self.heads}, {self.grid.tokens}, {self.width})"
        return f"{sizes} on {self.map}" if self.has_map else sizes

    @property
    def map(self) -> str:
        """`14 x 14`, `14 x 14 + 1` with prefix tokens; empty where there is none."""
        if not self.has_map:
            return ""
        prefix = f" + {self.grid.prefix}" if self.grid.prefix else ""
        return f"{self.grid.rows} x {self.grid.cols}{prefix}"
