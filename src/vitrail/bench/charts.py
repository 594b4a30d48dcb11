"""Charts of what was measured: lines with their bands, on logarithmic axes where a chart asks."""

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.bench.measurement import Chart, Point
from vitrail.tracking.atomic import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#3b82d6", "#e0701f", "#2f9e60", "#c2569b", "#8a6fd1", "#b08a1e", "#2a9aa8", "#c84b4b")
MARKERS = "osD^vPX*<>"
DASHES = ("-", "--", ":")
INK = "#222222"
STAND_IN = "#010203"  # an ink that nothing else is drawn in: the page's own takes its place
LETTERS = 100  # across a chart, in the size of its legend
MOST_MARKS = 25  # of a line; beyond, they hide it
MOST_TICKS = 12
APART = 1.12  # times the one before, or the words of two ticks run together
Style = Mapping[str, str]


def styles(charts: Sequence[Chart]) -> dict[str, Style]:
    """The look of each line by its name, so that a name looks the same in all of the charts."""
    names = dict.fromkeys(name for chart in charts for name in chart.lines)
    return {
        name: {
            "color": COLOURS[number % len(COLOURS)],
            "marker": MARKERS[number % len(MARKERS)],
            "linestyle": DASHES[number // len(COLOURS) % len(DASHES)],
        }
        for number, name in enumerate(names)
    }


def write_png(path: Path, chart: Chart, looks: Mapping[str, Style]) -> None:
    """The chart as a PNG on white; raises OSError when the file cannot be written."""
    figure = _figure(chart, looks, INK)
    with replacing(path) as draft:
        _save(figure, draft, dpi=150)


def svg(chart: Chart, looks: Mapping[str, Style]) -> str:
    """The chart as an `<svg>` for a page: no background, and its ink is the text's colour there."""
    # Slow to import, and only drawing needs it.
    from matplotlib import rc_context

    file = io.StringIO()
    # Its salt keeps the ids of one chart from those of another on the same page.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": chart.name}):
        blank = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        _save(_figure(chart, looks, STAND_IN), file, format="svg", transparent=True, metadata=blank)
    text = file.getvalue()
    text = text[text.index("<svg") :].replace(STAND_IN, "currentColor")
    return re.sub(r'<g id="[^"]*">', "<g>", text)  # nothing refers to groups, and ids are unique


def _save(figure: "Figure", file: io.StringIO | Path, **knobs) -> None:
    with warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        figure.savefig(file, bbox_inches="tight", **knobs)


def _figure(chart: Chart, looks: Mapping[str, Style], ink: str) -> "Figure":
    # No pyplot, whose figures belong to the process.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.2))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    lines = {name: _drawable(points, log=chart.log) for name, points in chart.lines.items()}
    drawn = [_line(axes, lines[name], looks[name]) for name in lines]
    axes.set_xlabel(chart.x, color=ink, parse_math=False)
    axes.set_ylabel(chart.y, color=ink, parse_math=False)
    axes.set_title(chart.title, color=ink, loc="left", fontsize=11, parse_math=False)
    if chart.log and any(lines.values()):
        _logarithmic(axes, [point for points in lines.values() for point in points])
    axes.tick_params(which="both", colors=ink, labelcolor=ink)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(ink)
    axes.grid(color=ink, alpha=0.15, linewidth=0.6)
    abreast = max(1, min(4, LETTERS // (max(map(len, lines), default=0) + 6)))
    below = {"loc": "upper left", "bbox_to_anchor": (0, -0.14), "ncols": abreast}
    legend = axes.legend(drawn, list(lines), **below, frameon=False, fontsize=9)
    for text in legend.get_texts():
        text.set(color=ink, parse_math=False)
    return figure


def _line(axes: "Axes", points: Sequence[Point], look: Style):
    x, y = [point.x for point in points], [point.y for point in points]
    low = [point.y if point.low is None else point.low for point in points]
    high = [point.y if point.high is None else point.high for point in points]
    if len(points) > 1:
        axes.fill_between(x, low, high, color=look["color"], alpha=0.18, linewidth=0)
    else:
        axes.vlines(x, low, high, color=look["color"], alpha=0.5)
    marked = look if len(points) <= MOST_MARKS else {**look, "marker": ""}
    [line] = axes.plot(x, y, markersize=5, linewidth=1.6, **marked)
    return line


def _logarithmic(axes: "Axes", points: Sequence[Point]) -> None:
    """Logarithmic axes with plain numbers at the ticks; along x the measured ones, if few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    plain = FuncFormatter(lambda value, _: f"{value:g}")
    for axis, values in (
        (axes.xaxis, [point.x for point in points]),
        (axes.yaxis, [point.y for point in points]),
    ):
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        few = max(values) / min(values) < 100
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(plain)
    ticks: list[float] = []
    for x in sorted({point.x for point in points}):
        if not ticks or x >= APART * ticks[-1]:
            ticks.append(x)
    if len(ticks) <= MOST_TICKS:
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])


def _drawable(points: Sequence[Point], *, log: bool) -> list[Point]:
    """In order along x, without what is not finite, or has no logarithm where one is asked for."""
    return sorted(
        (
            point
            for point in points
            if isfinite(point.x) and isfinite(point.y) and not (log and min(point.x, point.y) <= 0)
        ),
        key=lambda point: point.x,
    )
