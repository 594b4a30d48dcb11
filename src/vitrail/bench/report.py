"""What a measurement leaves for people: tables as CSV, on the terminal and on one page, charts."""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import pandas as pd
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vitrail.bench.statistics import BAND, ENDS
from vitrail.run.console import shown
from vitrail.tracking.atomic import replacing, write_text

TEMPLATE = Path(__file__).with_name("page.html")
UNITS = {"ms": "ms", "s": "s", "mib": "MiB", "percent": "%", "points": "percentage points"}
COLOURS = ("#3b82d6", "#e0701f", "#2f9e60", "#c2569b", "#8a6fd1", "#b08a1e", "#2a9aa8", "#c84b4b")
MARKERS = "osD^vPX*<>"
MOST_MARKS = 25  # of a line; beyond, they hide it
MOST_TICKS = 12
MARK, LARGEST_MARK = 5, 24  # points across

Value = str | int | float | bool | None | list[float]
# One measurement: units in the names, and the reason in "refused" where there is no figure. The
# ends of a figure's band or interval stand beside it, see BAND and ENDS.
Row = Mapping[str, Value]


@dataclass(frozen=True)
class Chart:
    """A line for each value of the column `line`, of `y` over `x`, with the band that `y` has.

    A line of one point is drawn as a point. log: whether both axes are logarithmic. size: the
    column that a point's area follows, whose value the legend tells.
    """

    name: str
    frame: pd.DataFrame
    x: str
    y: str
    line: str
    log: bool = False
    size: str | None = None

    def points(self) -> pd.DataFrame:
        """x, y, low, high, size and line of what can be drawn, along x; bands end at 0."""
        low, high = next(
            (ends for ends in (BAND, ENDS) if self.y + ends[0] in self.frame), ("", "")
        )
        columns = {"x": self.x, "y": self.y, "low": self.y + low, "high": self.y + high}
        columns |= {"size": self.size} if self.size in self.frame else {}
        points = pd.DataFrame(
            {name: pd.to_numeric(self.frame[of]).astype(float) for name, of in columns.items()}
        ).assign(line=self.frame[self.line].astype(str))
        points = points.dropna(subset=["x", "y"]).sort_values("x", kind="stable")
        if self.log:
            points = points[(points.x > 0) & (points.y > 0)]
        points["low"] = points.low.fillna(points.y).clip(lower=0)
        points["high"] = points.high.fillna(points.y)
        return points


@dataclass(frozen=True)
class Report:
    """What a folder is left with.

    rows: every column of every row, for results.csv. tables: by title, for the page. details:
    nested plain containers by title, shown when asked for.
    """

    title: str
    subtitle: str
    command: str
    rows: pd.DataFrame
    tables: Mapping[str, pd.DataFrame]
    charts: Sequence[Chart] = ()
    details: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def publish(folder: Path, report: Report) -> dict[str, Path]:
    """Write results.csv, charts/*.png and report.html; the pictures' paths by name of chart.

    Raises OSError, which names the file that cannot be written.
    """
    write_text(folder / "results.csv", report.rows.to_csv(index=False, lineterminator="\n"))
    drawn = [(chart, points) for chart in report.charts if len(points := chart.points())]
    names = [*dict.fromkeys(name for _, points in drawn for name in points.line)]
    pictures = {}
    for chart, points in drawn:
        file = re.sub(r"[^\w.-]+", "_", chart.name).strip("_")
        path = folder / "charts" / f"{file}.png"
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as draft:
            draw(chart, points, names).savefig(draft, bbox_inches="tight", dpi=150)
        pictures[chart.name] = path
    write_text(folder / "report.html", _page(report, pictures))
    print(f"results: {shown(folder / 'results.csv')}")
    print(f"report: {shown(folder / 'report.html')}")
    return pictures


def table_of(rows: Sequence[Row]) -> pd.DataFrame:
    """The rows without what is a list in them, such as the seconds of single rounds."""
    plain = [{k: v for k, v in row.items() if not isinstance(v, list)} for row in rows]
    return pd.DataFrame(plain).convert_dtypes()


def for_people(frame: pd.DataFrame, *, percentiles: bool = True) -> tuple[str, pd.DataFrame]:
    """What all rows have in common, in a line, and a table of texts of what they have not.

    Headings give units, and bands stand beside their figures. A column without values is left out.
    """
    frame = frame.reset_index(drop=True)
    ends = {column + end for column in frame for end in (*BAND, *ENDS)}
    common, texts = [], {}
    for column in (column for column in frame if column not in ends):
        values = frame[column]
        if (values.isna() | (values.astype(str) == "")).all():
            continue
        words = values.map(text)
        measured = pd.api.types.is_float_dtype(values) or column.rpartition("_")[2] in UNITS
        if len(frame) > 1 and words.nunique() == 1 and not measured:
            common.append(f"{heading(column)} {words[0]}")
            continue
        for low, high in (BAND, ENDS) if percentiles else (ENDS,):
            if column + low in frame:
                band = frame[column + low].map(text) + " – " + frame[column + high].map(text)
                words = words.where(frame[column + low].isna(), words + " (" + band + ")")
        texts[heading(column)] = words
    return ", ".join(common), pd.DataFrame(texts, dtype=str)


def print_table(console: Console, title: str, frame: pd.DataFrame) -> None:
    """The frame as people read it, numbers to the right; what rows have in common below."""
    common, texts = for_people(frame, percentiles=False)
    table = Table(title=Text(title), title_justify="left", caption=Text(common))
    for column in texts:
        numeric = texts[column].str.match(r"–$|-?\d").all()
        table.add_column(Text(column), justify="right" if numeric else "left")
    for row in texts.itertuples(index=False):
        table.add_row(*map(Text, row))  # what is in a table may look like rich's markup
    console.print(table)


def heading(column: str) -> str:
    """A column's name in words with its unit apart: `peak_mib` is `peak, MiB`."""
    column = column.replace("gflops_per_s", "GFLOP/s").replace("mfu", "MFU")
    name, _, unit = column.rpartition("_")
    return (f"{name}, {UNITS[unit]}" if name and unit in UNITS else column).replace("_", " ")


def text(value: Value) -> str:
    """Four digits of a number, yes or no, a word as it is; a dash for nothing."""
    if pd.isna(value):
        return "–"
    if isinstance(value, str):
        return value
    if pd.api.types.is_bool(value):
        return "yes" if value else "no"
    if pd.api.types.is_integer(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if value == 0 or abs(value) >= 1e-3 else f"{value:.1e}"


def draw(chart: Chart, points: pd.DataFrame, names: Sequence[str]):
    """matplotlib's figure of these points; a line's colour and marker follow its place in names."""
    # Slow to import, and only drawing needs it; no pyplot, whose figures belong to the process.
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    with rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(7.2, 4.2))
        axes = figure.add_subplot()
        if chart.log:
            axes.set(xscale="log", yscale="log")
        for name, line in points.groupby("line", sort=False):
            number, label, mark = names.index(name), name, MARK
            if "size" in line and pd.notna(size := line["size"].iloc[0]):
                label += f" ({text(size)} {UNITS.get(chart.size.rpartition('_')[2], '')})"
                mark = LARGEST_MARK * (size / points["size"].max()) ** 0.5
            look = {"color": COLOURS[number % len(COLOURS)], "linewidth": 1.6, "markersize": mark}
            marker = MARKERS[number % len(MARKERS)] if len(line) <= MOST_MARKS else ""
            axes.plot(line.x, line.y, label=label, marker=marker, **look)
            if len(line) > 1:
                axes.fill_between(line.x, line.low, line.high, color=look["color"], alpha=0.18)
            else:
                axes.vlines(line.x, line.low, line.high, color=look["color"], alpha=0.5)
        measured = sorted(points.x.unique())
        if chart.log:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            if len(measured) <= MOST_TICKS:
                axes.set_xticks(measured, [f"{x:g}" for x in measured])
                axes.xaxis.set_minor_locator(NullLocator())
        axes.set(title=chart.name, xlabel=heading(chart.x), ylabel=heading(chart.y))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.15)
        legend = axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=9)
        for handle in legend.legend_handles:
            handle.set_markersize(MARK)
    return figure


def _page(report: Report, pictures: Mapping[str, Path]) -> str:
    parts = ['<div class="charts">']
    for name, path in pictures.items():
        source = f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
        parts.append(f'<img alt="{escape(name)}" src="{source}">')
    parts.append("</div>")
    for title, frame in report.tables.items():
        if not frame.empty:
            common, texts = for_people(frame)
            table = texts.to_html(index=False, border=0)
            count = f"{len(frame)} rows" + f"; all of {common}" * bool(common)
            parts += [f"<h2>{escape(title)}</h2><p>{escape(count)}</p>"]
            parts += [f'<div class="scroll">{table}</div>']
    parts.append(f"<h2>Command</h2><pre>{escape(report.command)}</pre>")
    for title, content in report.details.items():
        listing = escape(yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True))
        parts.append(f"<details><summary>{escape(title)}</summary><pre>{listing}</pre></details>")
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(report.title), subtitle=escape(report.subtitle), body="\n".join(parts)
    )
