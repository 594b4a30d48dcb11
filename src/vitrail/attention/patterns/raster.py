"""Reading order: a token sees itself and what comes before it, row by row."""

from dataclasses import dataclass

from torch import Tensor

from vitrail.attention.grid import Grid
from vitrail.attention.patterns import Coordinates, Pattern


@dataclass(frozen=True)
class Raster(Pattern):
    """Causal on the map alone: prefix tokens see everyone, and may carry on what they saw."""

    def sees(self, query: Coordinates, key: Coordinates, grid: Grid) -> Tensor:
        return (key[0] < query[0]) | ((key[0] == query[0]) & (key[1] <= query[1]))
