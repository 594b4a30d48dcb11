"""Rules of who sees whom on the grid, one file each, and how a rule is computed by smaller calls.

A pattern is a frozen recipe. Its predicate `sees` serves the dense mask, a kernel that takes
predicates, and the picture. Where the map falls into groups that see only themselves, `split` makes
one call of them all, so that cost grows with N and not with N². Prefix tokens (class, registers)
see and are seen by everyone.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitrail.attention.grid import Grid
from vitrail.attention.mask import Mask

Places = tuple[Tensor, Tensor]  # rows and columns, int, of equal or broadcasting shapes


@dataclass(frozen=True)
class Call:
    """One attention call: q, k, v (B', h, n, d), who may see whom among them, and what is added."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask
    bias: Tensor | None


class Pattern:
    """The contract; each default is that of a rule which is not regrouped."""

    def sees(self, query: Places, key: Places, grid: Grid) -> Tensor:
        """Bool, True = may be seen, for tokens on the map by row and column."""
        raise NotImplementedError

    def tile(self, grid: Grid) -> Grid:
        """The largest piece of the map whose tokens may see each other, with the same prefix.

        Relative positions are told of this grid.
        """
        return grid

    def places(self, grid: Grid, device: torch.device) -> Places:
        """Row and column of each token on the map inside its tile, (area,) each."""
        return grid.coordinates(device)

    def split(self, whole: Call, tile_bias: Tensor | None, grid: Grid) -> list[Call]:
        """Calls that together compute `whole` under this rule.

        tile_bias: (1, h, T, T), added to the scores within each tile of T tokens, prefix first.
        """
        return [
            replace(
                whole,
                mask=replace(whole.mask, pattern=Placed(self, grid)),
                bias=added(whole.bias, tile_bias),
            )
        ]

    def join(self, outs: list[Tensor], grid: Grid) -> Tensor:
        """Outputs of `split`'s calls -> (B, h, N, d), tokens in their order."""
        return outs[0]


@dataclass(frozen=True)
class Placed:
    """A pattern on one grid: the rule on token indices that `Mask` takes."""

    pattern: Pattern
    grid: Grid

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """Bool for int token indices that broadcast; prefix tokens see and are seen by all."""
        prefix = self.grid.prefix
        places = [_place(index - prefix, self.grid.cols) for index in (query, key)]
        return (query < prefix) | (key < prefix) | self.pattern.sees(*places, self.grid)

    def visible(self, device: torch.device) -> Tensor:
        """(1, 1, N, N) bool."""
        index = torch.arange(self.grid.tokens, device=device)
        return self.sees(index[:, None], index[None, :])[None, None]


def added(bias: Tensor | None, other: Tensor | None) -> Tensor | None:
    """The sum of two biases, either of which may be absent."""
    return bias if other is None else other if bias is None else bias + other


def _place(index: Tensor, cols: int) -> Places:
    return index // cols, index % cols
