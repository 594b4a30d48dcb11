"""The map between a flat token index and its place on the image."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps

import torch
from torch import Tensor

from vitrail.errors import UserError


@dataclass(frozen=True)
class Grid:
    """A rows x cols map of tokens, read row by row, behind `prefix` tokens without a place on it.

    Prefix tokens are the class token and the registers; token `prefix + row * cols + col` lies at
    (row, col).
    """

    rows: int
    cols: int
    prefix: int = 0

    def __post_init__(self):
        if self.rows < 1 or self.cols < 1 or self.prefix < 0:
            raise UserError(
                f"{self} is empty; use at least one row and one column, and no negative prefix"
            )

    @property
    def area(self) -> int:
        """Tokens on the map, prefix tokens not counted."""
        return self.rows * self.cols

    @property
    def tokens(self) -> int:
        """All tokens, prefix tokens first."""
        return self.prefix + self.area

    def coordinates(self, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
        """Row and column of each token on the map, two int64 tensors of shape (area,)."""
        index = torch.arange(self.area, device=device)
        return index // self.cols, index % self.cols


MOST_KEPT = 32  # tensors of one function
LARGEST_KEPT = 2**24  # elements of one tensor


def kept_per_grid(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Keep what `compute` makes of hashable arguments: a mask of all pairs takes milliseconds."""
    kept: dict[tuple, Tensor] = {}

    @wraps(compute)
    def recall(*key) -> Tensor:
        if torch.compiler.is_compiling():  # a graph keeps its own, of sizes that may be symbols
            return compute(*key)
        if key not in kept:
            with torch.inference_mode(False):  # training may need it next
                tensor = compute(*key)
            if type(tensor) is not Tensor or tensor.numel() > LARGEST_KEPT:  # a fake one, say
                return tensor
            if len(kept) >= MOST_KEPT:
                kept.pop(next(iter(kept)))  # the oldest
            kept[key] = tensor
        return kept[key]

    return recall
