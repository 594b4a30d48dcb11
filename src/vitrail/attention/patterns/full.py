"""Everyone sees everyone."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitrail.attention.grid import Grid
from vitrail.attention.patterns import Call, Coordinates, Pattern, added


@dataclass(frozen=True)
class Full(Pattern):
    """No rule, and so no mask."""

    def sees(self, query: Coordinates, key: Coordinates, grid: Grid) -> Tensor:
        return torch.ones_like(query[0] + key[0], dtype=torch.bool)

    def split(self, whole: Call, tile_bias: Tensor | None, grid: Grid) -> list[Call]:
        return [replace(whole, bias=added(whole.bias, tile_bias))]
