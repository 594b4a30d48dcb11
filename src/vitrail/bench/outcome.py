"""What every bench command leaves in its folder: tables, charts, one page, and where they lie."""

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.bench import charts, report
from vitrail.bench.measurement import Row
from vitrail.bench.report import Page
from vitrail.bench.results import write_tables
from vitrail.run.console import shown


def leave(
    folder: Path, page: Page, rows: Sequence[Row], about: Mapping[str, Any]
) -> dict[str, Path]:
    """Write results.csv, results.json, charts/*.png and report.html, and print what was found.

    about: plain containers that results.json holds beside the rows. Returns the pictures' paths by
    the names of their charts.
    """
    write_tables(folder, rows, {"command": page.command, **about, "sentences": [*page.sentences]})
    looks = charts.styles(page.charts)
    pictures = {}
    for chart in page.charts:
        name = re.sub(r"[^\w.-]+", "_", chart.name)
        pictures[chart.name] = folder / "charts" / f"{name}.png"
        pictures[chart.name].parent.mkdir(exist_ok=True)
        charts.write_png(pictures[chart.name], chart, looks)
    report.write(folder / "report.html", page)
    for sentence in page.sentences:
        print(sentence)
    print(f"results: {shown(folder / 'results.csv')} and results.json")
    print(f"report: {shown(folder / 'report.html')}")
    return pictures


def command(overrides: Sequence[str]) -> str:
    """This command with these overrides, as a person would type it in a shell."""
    started = Path(sys.argv[0])
    words = ["python", started.name] if started.suffix == ".py" else [started.name]
    return shlex.join([*words, *overrides])
