"""Rules of who sees whom on the grid, one file each, and how a rule is computed by smaller calls.

A pattern is a frozen description. Its predicate `sees` serves the dense mask, a kernel that takes
predicates, and the picture. Where the map falls into groups, `split` makes one call of them all, so
that cost grows with N and not with N². Prefix tokens (class, registers) see and are seen by
everyone.
"""

import importlib
import pkgutil
from dataclasses import dataclass, replace
from operator import index

import torch
from torch import Tensor

from vitrail.attention.grid import Grid, kept_per_grid
from vitrail.attention.mask import Mask
from vitrail.errors import UserError

Coordinates = tuple[Tensor, Tensor]  # rows and columns, int, of equal or broadcasting shapes


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

    @classmethod
    def examples(cls) -> list["Pattern"]:
        """Settings that differ in kind: those that pictures show and tests run over."""
        return [cls()]

    def sees(self, query: Coordinates, key: Coordinates, grid: Grid) -> Tensor:
        """Bool, True = may be seen, for tokens on the map by row and column.

        Made of elementwise operations on int tensors, so that a kernel can compile it.
        """
        raise NotImplementedError

    def tile(self, grid: Grid) -> Grid:
        """The largest piece of the map whose tokens may see each other, with the same prefix."""
        return grid

    def places(self, grid: Grid, device: torch.device) -> Coordinates:
        """Row and column of each token on the map inside its tile, (area,) each."""
        return grid.coordinates(device)

    def split(self, whole: Call, tile_bias: Tensor | None, grid: Grid) -> list[Call]:
        """Calls that together compute `whole`, whose mask has no pattern, under this rule.

        tile_bias: (1, h, T, T), added to the scores within each tile of T tokens, prefix first.
        """
        mask = replace(whole.mask, pattern=GridPattern(self, grid))
        return [replace(whole, mask=mask, bias=added(whole.bias, tile_bias))]

    def join(self, outs: list[Tensor], grid: Grid) -> Tensor:
        """Outputs of `split`'s calls -> (B, h, N, d), tokens in their order."""
        return outs[0]


class Regrouped(Pattern):
    """A rule whose map falls into groups of n queries that see at most the same m keys of the map.

    All groups are one call: a group is a sample of its batch, its keys are the prefix and then its
    own. Prefix tokens, which see everyone, are queries of a second call.
    """

    exact: bool  # every query sees every key of its group; otherwise `sees` says which

    def queries(self, x: Tensor, grid: Grid) -> Tensor:
        """Tokens of the map (B, h, area, d) -> (B, groups, h, n, d), 0 beyond the map's edge."""
        raise NotImplementedError

    def keys(self, x: Tensor, grid: Grid) -> Tensor:
        """Tokens of the map (B, h, area, d) -> (B, groups, h, m, d), 0 beyond the map's edge."""
        raise NotImplementedError

    def ungrouped(self, x: Tensor, grid: Grid) -> Tensor:
        """The inverse of `queries`, (B * groups, h, n, d) -> (B, h, area, d)."""
        raise NotImplementedError

    def overhangs(self, grid: Grid) -> bool:
        """Whether some keys of some group lie beyond the map's edge."""
        raise NotImplementedError

    def split(self, whole: Call, tile_bias: Tensor | None, grid: Grid) -> list[Call]:
        groups = self._groups(whole, tile_bias, grid)
        return [groups] if grid.prefix == 0 else [groups, self._prefix(whole, tile_bias, grid)]

    def join(self, outs: list[Tensor], grid: Grid) -> Tensor:
        groups, *prefix = outs
        out = self.ungrouped(groups, grid)
        return torch.cat([*prefix, out], dim=2) if prefix else out

    def _groups(self, whole: Call, tile_bias: Tensor | None, grid: Grid) -> Call:
        if self.tile(grid) == grid:  # it tells of all pairs, as the bias of a call does
            bias = self._among(added(whole.bias, tile_bias), whole, grid)
        else:
            shared = None if tile_bias is None else tile_bias[:, :, grid.prefix :]
            bias = added(self._among(whole.bias, whole, grid), shared)
        q = self.queries(whole.q[:, :, grid.prefix :], grid).flatten(0, 1)
        mask = Mask(valid=self._padding(whole, grid), allowed=self._allowed(whole, grid))
        return Call(q, self._seen(whole.k, grid), self._seen(whole.v, grid), mask, bias)

    def _prefix(self, whole: Call, tile_bias: Tensor | None, grid: Grid) -> Call:
        """The prefix tokens look at everyone, each at its place in its own tile."""
        prefix, allowed, bias = grid.prefix, whole.mask.allowed, whole.bias
        if tile_bias is not None:
            row, col = self.places(grid, tile_bias.device)
            own = torch.arange(prefix, device=tile_bias.device)
            keys = torch.cat([own, prefix + row * self.tile(grid).cols + col])  # (N,)
            tile_bias = tile_bias[:, :, :prefix, keys]
        allowed = None if allowed is None else allowed[:, :, :prefix]
        bias = added(None if bias is None else bias[:, :, :prefix], tile_bias)
        mask = replace(whole.mask, allowed=allowed)
        return replace(whole, q=whole.q[:, :, :prefix], mask=mask, bias=bias)

    def _seen(self, x: Tensor, grid: Grid) -> Tensor:
        """What each group sees, (B, h, N, d) -> (B * groups, h, prefix + m, d)."""
        keys = self.keys(x[:, :, grid.prefix :], grid)
        if grid.prefix == 0:  # or keys would be copied once more
            return keys.flatten(0, 1)
        prefix = x[:, None, :, : grid.prefix].expand(-1, keys.shape[1], -1, -1, -1)
        return torch.cat([prefix, keys], dim=3).flatten(0, 1)

    def _padding(self, whole: Call, grid: Grid) -> Tensor | None:
        valid = whole.mask.valid
        if valid is None and self.overhangs(grid):
            shape = (whole.q.shape[0], grid.tokens)
            valid = torch.ones(shape, dtype=torch.bool, device=whole.q.device)
        return None if valid is None else self._seen(valid[:, None, :, None], grid)[:, 0, :, 0]

    def _allowed(self, whole: Call, grid: Grid) -> Tensor | None:
        allowed = self._among(whole.mask.allowed, whole, grid)
        if self.exact:
            return allowed
        sees = _sees_in_groups(self, grid, whole.q.device)  # (groups, n, prefix + m)
        sees = sees.expand(whole.q.shape[0], 1, -1, -1, -1).transpose(1, 2).flatten(0, 1)
        return sees if allowed is None else sees & allowed

    def _among(self, dense: Tensor | None, whole: Call, grid: Grid) -> Tensor | None:
        """(1|B, 1|h, N, N) inside each group, (B * groups, 1|h, n, prefix + m)."""
        if dense is None:
            return None
        queries, keys = self.pairs(grid, dense.device)
        inside = dense[:, :, queries, keys]  # (1|B, 1|h, groups, n, prefix + m)
        return inside.expand(whole.q.shape[0], -1, -1, -1, -1).transpose(1, 2).flatten(0, 1)

    def pairs(self, grid: Grid, device: torch.device) -> tuple[Tensor, Tensor]:
        """Indices of the tokens of each group, (groups, n, 1) and (groups, 1, prefix + m)."""
        tokens = torch.arange(grid.tokens, device=device)[None, None, :, None]
        queries = self.queries(tokens[:, :, grid.prefix :], grid)[0, :, 0]
        keys = self._seen(tokens, grid)[:, 0].transpose(1, 2)
        # What other strides would make of an indexed tensor, torch.compile foresees wrongly (2.14).
        return queries.contiguous(), keys.contiguous()


@dataclass(frozen=True)
class GridPattern:
    """A pattern on one grid: the rule on token indices that `Mask` takes."""

    pattern: Pattern
    grid: Grid

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """Bool for int token indices that broadcast; prefix tokens see and are seen by all."""
        prefix = self.grid.prefix
        places = [
            ((token - prefix) // self.grid.cols, (token - prefix) % self.grid.cols)
            for token in (query, key)
        ]
        return (query < prefix) | (key < prefix) | self.pattern.sees(*places, self.grid)

    def visible(self, device: torch.device) -> Tensor:
        """(1, 1, N, N) bool."""
        return _sees_all(self, device)


@kept_per_grid
def _sees_all(rule: GridPattern, device: torch.device) -> Tensor:
    tokens = torch.arange(rule.grid.tokens, device=device)
    return rule.sees(tokens[:, None], tokens[None, :])[None, None]


@kept_per_grid
def _sees_in_groups(pattern: Regrouped, grid: Grid, device: torch.device) -> Tensor:
    return GridPattern(pattern, grid).sees(*pattern.pairs(grid, device))


def names() -> list[str]:
    """Every pattern, by the listing of this folder."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in modules if name != "__main__")


def load(name: str) -> type[Pattern]:
    """The pattern that a file of this folder holds, or the class that a dotted path names.

    Raises UserError for a name without a pattern. What goes wrong in a file keeps its traceback.
    """
    if "." in name:
        home, _, wanted = name.rpartition(".")
        found = [getattr(importlib.import_module(home), wanted, None)]
    else:
        module = importlib.import_module(f"{__name__}.{name}")
        public = [member for key, member in vars(module).items() if not key.startswith("_")]
        found = [one for one in public if getattr(one, "__module__", "") == module.__name__]
    found = [one for one in found if isinstance(one, type) and issubclass(one, Pattern)]
    if len(found) != 1:
        raise UserError(f"{name} must hold one subclass of Pattern, found {len(found)}")
    return found[0]


def plain_sizes(grid: Grid) -> Grid:
    """The grid with plain numbers for sizes: were they open, torch.compile would reason for half a
    minute a layer about how groups fit."""
    return Grid(index(grid.rows), index(grid.cols), index(grid.prefix))


def added(bias: Tensor | None, other: Tensor | None) -> Tensor | None:
    """The sum of two biases, either of which may be absent."""
    return bias if other is None else other if bias is None else bias + other


def by_axis(key: str, value: int | tuple[int, int], *, minimum: int) -> tuple[int, int]:
    """One number for both axes, or (rows, cols), as a pair; UserError for any below `minimum`."""
    pair = tuple(value) if isinstance(value, tuple | list) else (value, value)
    if len(pair) != 2 or not all(isinstance(n, int) and n >= minimum for n in pair):
        raise UserError(
            f"{key}={value} must be whole numbers from {minimum} on: one for both axes, or rows "
            "and columns"
        )
    return pair
