"""A picture of who is seen: `python -m vitrail.attention.patterns window --grid 6 9 --query 2 4`.

Bad input ends with one line on stderr and exit code 1.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from math import ceil
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

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
    parser = command()
    given = vars(parser.parse_args(arguments))
    name, query, path = given.pop("pattern"), given.pop("query"), given.pop("out")
    path = path or Path(f"{name}.png")
    try:
        grid = Grid(*given.pop("grid"), given.pop("prefix"))
        shown = {str(pattern): seen(pattern, query, grid) for pattern in chosen(name, given)}
        draw(path, shown, query, grid)
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"{path}: {error.strerror}")
    for pattern, tokens in shown.items():
        print(f"{pattern}: {tuple(query)} sees {tokens.sum()} of {len(tokens)} tokens")
    print(path)


def command() -> OneLine:
    """The arguments: a word for each file of this folder, with its pattern's fields as options."""
    parser = OneLine(prog="python -m vitrail.attention.patterns", description=__doc__)
    words = parser.add_subparsers(dest="pattern", metavar="PATTERN", required=True)
    for name in patterns.names():
        pattern = patterns.load(name)
        word = words.add_parser(name, help=sys.modules[pattern.__module__].__doc__)
        types = get_type_hints(pattern)
        for field in fields(pattern):
            word.add_argument(f"--{field.name}", **_option(field, types[field.name]))
    words.add_parser(EVERY, help="Examples of every pattern, side by side.")
    for word in words.choices.values():
        word.add_argument("--grid", type=int, nargs=2, required=True, metavar=("ROWS", "COLS"))
        word.add_argument("--query", type=int, nargs=2, required=True, metavar=("ROW", "COL"))
        word.add_argument("--prefix", type=int, default=0, help="tokens without a place on the map")
        word.add_argument("--out", type=Path, metavar="FILE.png", help="PATTERN.png unless given")
    return parser


def _option(field: Field, hint: Any) -> dict[str, Any]:
    """A number or a word; one or two of them where a field also takes (rows, cols)."""
    kind, *others = get_args(hint) or (hint,)
    return {
        "type": kind,
        "nargs": "+" if any(get_origin(other) is tuple for other in others) else None,
        "required": field.default is MISSING,
        "default": argparse.SUPPRESS,
        "help": f"{field.default} unless given",
    }


def chosen(name: str, options: dict[str, Any]) -> list[Pattern]:
    """The pattern with these options, or the examples of every one."""
    if name == EVERY:
        return [pattern for each in patterns.names() for pattern in patterns.load(each).examples()]
    single = {
        key: value[0] if isinstance(value, list) and len(value) == 1 else value
        for key, value in options.items()
    }
    return [patterns.load(name)(**single)]


def seen(pattern: Pattern, query: Sequence[int], grid: Grid) -> Tensor:
    """(N,) bool: whom the token at (row, col) sees; ValueError when it is not on the map."""
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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    beside = ceil(grid.prefix / grid.rows)  # columns of prefix tokens
    left = beside + 1 if beside else 0
    across = min(4, len(shown))
    down = ceil(len(shown) / across)
    size = (across * max(2.6, CELL * (left + grid.cols)), down * (0.5 + CELL * grid.rows))
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.15, h_pad=0.1)
    for number, (title, tokens) in enumerate(shown.items()):
        cells = torch.full((grid.rows, left + grid.cols), float("nan"))
        cells[:, left:] = tokens[grid.prefix :].view(grid.rows, grid.cols).float()
        cells[query[0], left + query[1]] = 2
        for token in range(grid.prefix):
            cells[token % grid.rows, token // grid.rows] = tokens[token].float()
        axes = figure.add_subplot(down, across, number + 1)
        axes.pcolormesh(
            cells.numpy(), cmap=ListedColormap(COLOURS), vmin=0, vmax=2, edgecolors="w", linewidth=1
        )
        axes.set_title(title, fontsize=7)
        axes.set_aspect("equal")
        axes.invert_yaxis()
        axes.set_axis_off()
    figure.savefig(path, format="png")


if __name__ == "__main__":
    main()
