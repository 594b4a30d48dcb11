"""A picture of who is seen: `python -m vitrail.attention.patterns window --grid 6 9 --query 2 4`.

PATTERN is a file of this folder, the dotted path of a class elsewhere, or `all` for examples of
every one; its fields are options, such as `--size 3 2`. Bad input ends with one line on stderr and
exit code 1.
"""

import argparse
from ast import literal_eval
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from math import ceil
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from vitrail.attention import patterns
from vitrail.attention.grid import Grid
from vitrail.attention.patterns import GridPattern, Pattern
from vitrail.errors import UserError

EVERY = "all"
COLOURS = ("#ececec", "#6a9ec5", "#c8553d")  # not seen, seen, the query
CELL = 0.28  # inches


class OneLine(argparse.ArgumentParser):
    """Says what is wrong in one line and ends with 1, as every command of vitrail does."""

    def error(self, message: str) -> NoReturn:
        self.exit(1, f"error: {message}\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw what the arguments say (the process's own unless given) and print how many are seen."""
    parser = OneLine(description=__doc__, allow_abbrev=False)
    parser.add_argument("pattern", metavar="PATTERN", help=", ".join([*patterns.names(), EVERY]))
    parser.add_argument("--grid", type=int, nargs=2, required=True, metavar=("ROWS", "COLS"))
    parser.add_argument("--query", type=int, nargs=2, required=True, metavar=("ROW", "COL"))
    parser.add_argument("--prefix", type=int, default=0, help="tokens without a place on the map")
    parser.add_argument("--out", type=Path, metavar="FILE.png", help="PATTERN.png unless given")
    given, options = parser.parse_known_args(arguments)
    path = given.out or Path(f"{given.pattern}.png")
    try:
        grid = Grid(*given.grid, given.prefix)
        chosen = read(given.pattern, options)
        shown = {str(pattern): seen(pattern, given.query, grid) for pattern in chosen}
        draw(path, shown, given.query, grid)
    except UserError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"{path}: {error.strerror}")
    for pattern, tokens in shown.items():
        print(f"{pattern}: {tuple(given.query)} sees {tokens.sum()} of {len(tokens)} tokens")
    print(path)


def read(name: str, options: Sequence[str]) -> list[Pattern]:
    """The pattern of that name, with the fields that the options set, or examples of all."""
    if name == EVERY:
        return [one for each in patterns.names() for one in patterns.load(each).examples()]
    if "." not in name and name not in patterns.names():
        raise UserError(
            f"pattern {name} does not exist; use {', '.join(patterns.names())}, {EVERY} or a "
            "dotted path"
        )
    pattern = patterns.load(name)
    parser = OneLine(prog=name, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for field in fields(pattern) if is_dataclass(pattern) else ():
        needed = field.default is MISSING
        parser.add_argument(f"--{field.name}", type=value_of, nargs="+", required=needed)
    values = vars(parser.parse_args(options)).items()
    return [pattern(**{key: value if len(value) > 1 else value[0] for key, value in values})]


def value_of(text: str) -> object:
    """The number that is written, or the word."""
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def seen(pattern: Pattern, query: Sequence[int], grid: Grid) -> Tensor:
    """(N,) bool: whom the token at (row, col) sees; UserError when it is not on the map."""
    row, col = query
    if not (0 <= row < grid.rows and 0 <= col < grid.cols):
        raise UserError(
            f"query {row} {col} is not on the map; use row 0 to {grid.rows - 1} and column 0 to "
            f"{grid.cols - 1}"
        )
    token = torch.tensor(grid.prefix + row * grid.cols + col)
    return GridPattern(pattern, grid).sees(token, torch.arange(grid.tokens))


def draw(path: Path, shown: dict[str, Tensor], query: Sequence[int], grid: Grid) -> None:
    """Write a PNG: a map for each pattern's seen tokens, (N,) bool, prefix tokens on its left."""
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    prefix = torch.arange(grid.prefix)
    beside = ceil(grid.prefix / grid.rows)  # columns of prefix tokens
    left = beside + (beside > 0)
    across = min(4, len(shown))
    down = ceil(len(shown) / across)
    size = (across * max(2.6, CELL * (left + grid.cols)), down * (0.5 + CELL * grid.rows))
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.15, h_pad=0.1)
    for number, (title, tokens) in enumerate(shown.items()):
        cells = torch.full((grid.rows, left + grid.cols), float("nan"))
        cells[:, left:] = tokens[grid.prefix :].view(grid.rows, grid.cols).float()
        cells[query[0], left + query[1]] = 2
        cells[prefix % grid.rows, prefix // grid.rows] = tokens[: grid.prefix].float()
        axes = figure.add_subplot(down, across, number + 1)
        lines = {"edgecolors": "w", "linewidth": 1}
        axes.pcolormesh(cells.numpy(), cmap=ListedColormap(COLOURS), vmin=0, vmax=2, **lines)
        axes.set_title(title, fontsize=7)
        axes.set(aspect="equal", ylim=(grid.rows, 0))
        axes.set_axis_off()
    figure.savefig(path, format="png")


if __name__ == "__main__":
    main()
