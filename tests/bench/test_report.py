"""The page needs nothing else, shows what it was given as it was given, and its tables sort."""

import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from vitrail.bench import report
from vitrail.bench.measurement import Chart, Point
from vitrail.bench.report import Page, Table

from .made_up import MadeUp, row

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--enable-logging=stderr", "--dump-dom",
)  # fmt: skip
ROWS = [
    row("eager", 64, forward_ms=0.5),
    row("none", 64),
    row("sdpa_flash", 64, forward_ms=1000.25),
    row("flex", 64, forward_ms=80.0),
    row("zebra", 64, forward_ms=None, refused="forward_ms is nan"),
    row("sdpa", 64, forward_ms=1.5e-05),
]
CHART = Chart("speed", "Speed", "tokens", "ms", {"eager": [Point(64, 1), Point(197, 2)]}, note="n²")


def page_of(rows=ROWS, **changes):
    table = Table("Results", rows, MadeUp.keys, MadeUp.columns)
    parts = {
        "title": "bench=made_up",
        "subtitle": "today",
        "command": "python bench.py",
        "sentences": [],
    }
    return Page(**parts | {"charts": [], "tables": [table]} | changes)


class Reader(HTMLParser):
    """The tables of a page as lists of rows, with the text of each cell, and all start tags."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.tags, self._cell = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self._cell = []

    def handle_data(self, data):
        if self._cell is not None:
            self._cell.append(data)

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.tables[-1][-1].append("|".join(self._cell))
            self._cell = None


@pytest.fixture
def write(tmp_path):
    """Write a page and return its text."""

    def call(page):
        report.write(tmp_path / "report.html", page)
        return (tmp_path / "report.html").read_text(encoding="utf-8")

    return call


def test_the_page_refers_to_nothing_outside_itself(write):
    text = write(page_of(charts=[CHART], details={"Environment": {"cpu": {"name": "x"}}}))
    tags = Reader(text).tags
    assert not [attrs for _, attrs in tags if {"src", "srcset", "action"} & attrs.keys()]
    links = [value for _, attrs in tags for name, value in attrs.items() if name.endswith("href")]
    assert all(link.startswith("#") for link in links)
    assert not [tag for tag, _ in tags if tag in ("link", "iframe", "object", "img", "base")]
    assert not re.search(r"@import|url\((?!#)", text)
    [policy] = [attrs["content"] for tag, attrs in tags if attrs.get("http-equiv")]
    assert policy.startswith("default-src 'none';")


def test_findings_come_first_then_charts_tables_and_what_ran(write):
    text = write(
        page_of(
            sentences=["eager is faster"],
            charts=[CHART],
            command="python bench.py 'bench.shapes=[[2]]'",
            details={"Config": {"bench": {"rounds": 9}}},
        )
    )
    body = text[text.index("<main>") :]
    parts = (
        "eager is faster",
        "<svg",
        "n²",
        "<table",
        "&#x27;bench.shapes=[[2]]&#x27;",
        "rounds: 9",
    )
    places = [body.index(part) for part in parts]
    assert places == sorted(places)


def test_whatever_a_name_holds_it_is_text(write):
    evil = '<script>alert("&")</script>'
    chart = Chart(evil, evil, evil, evil, {evil: [Point(1, 1), Point(2, 2)]}, note=evil)
    table = Table(
        evil, [row(evil, 64, refused=""), row("none", 64, refused=evil)], MadeUp.keys, ["peak_mib"]
    )
    parts = {"title": evil, "subtitle": evil, "command": evil, "sentences": [evil]}
    text = write(page_of(**parts, charts=[chart], tables=[table], details={evil: {evil: evil}}))
    reader = Reader(text)
    assert [tag for tag, _ in reader.tags].count("script") == 1
    assert reader.tables[0][1] == [evil, "10"]
    assert reader.tables[0][2] == ["none", evil]


def test_a_refused_row_has_its_reason_in_place_of_figures(write):
    text = write(page_of())
    [table] = Reader(text).tables
    assert table[0] == ["backend", "forward, ms", "peak, MiB", "auto"]
    assert table[1] == ["eager", "0.5|5.4 – 6.6", "10", "yes"]
    assert table[2] == ["none", "cannot run <b>here</b>"]
    assert '<td class="why" colspan="3">' in text
    assert table[5] == ["zebra", "–|5.4 – 6.6", "10", "no|forward_ms is nan"]


def test_a_key_that_is_the_same_everywhere_is_said_once_above(write):
    text = write(page_of())
    assert "<caption>6 rows; all of tokens 64, dtype float32</caption>" in text
    assert "<caption>1 row</caption>" in write(page_of(ROWS[:1]))


def test_a_table_without_rows_is_left_out(write):
    assert "<table>" not in write(page_of([]))


def test_a_folded_table_is_there_for_the_asking(write):
    text = write(page_of(tables=[Table("All columns", ROWS, MadeUp.keys, [*ROWS[0]], folded=True)]))
    assert "<details>\n<summary>All columns</summary>" in text
    heads = ["backend", "forward, ms", "peak, MiB", "auto"]  # bands stand beside, reasons instead
    assert Reader(text).tables[0][0] == heads


def test_where_two_trees_differ_is_a_row_a_key():
    trees = {
        "A": {"cpu": {"cores": 2, "name": "x"}, "gpu": None},
        "B": {"cpu": {"cores": 4, "name": "x"}},
    }
    assert report.differing(trees) == [{"key": "cpu.cores", "A": 2, "B": 4}]


@pytest.mark.skipif(BROWSER is None, reason="there is no chromium here")
class TestInABrowser:
    """What a person sees and clicks."""

    @pytest.fixture
    def browse(self, tmp_path):
        """Open a page with one more script in it: the page then, and what the browser said."""

        def call(page, script):
            path = tmp_path / "report.html"
            report.write(path, page)
            text = path.read_text(encoding="utf-8")
            path.write_text(
                text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8"
            )
            done = subprocess.run(
                [BROWSER, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", path.as_uri()],
                env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
                capture_output=True,
                text=True,
                timeout=120,
            )
            complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
            return Reader(done.stdout), complaints

        return call

    @pytest.mark.parametrize(
        "column, clicks, names",
        [
            (1, 1, ["sdpa", "eager", "flex", "sdpa_flash", "none", "zebra"]),
            (1, 2, ["sdpa_flash", "flex", "eager", "sdpa", "none", "zebra"]),
            (0, 1, ["eager", "flex", "none", "sdpa", "sdpa_flash", "zebra"]),
            (0, 2, ["zebra", "sdpa_flash", "sdpa", "none", "flex", "eager"]),
        ],
    )
    def test_a_click_on_a_heading_sorts_numbers_as_numbers_and_blanks_last(
        self, browse, column, clicks, names
    ):
        click = f"document.querySelectorAll('th button')[{column}].click();"
        reader, complaints = browse(page_of(), click * clicks)
        [table] = reader.tables
        assert [cells[0] for cells in table[1:]] == names
        sorts = [attrs["aria-sort"] for tag, attrs in reader.tags if tag == "th"]
        assert sorts[column] == ("descending" if clicks == 2 else "ascending")
        assert sorts.count("none") == len(sorts) - 1
        assert complaints == []

    def test_charts_and_tables_are_seen_and_nothing_is_refused_by_the_pages_own_policy(
        self, browse
    ):
        look = """
            const seen = [...document.querySelectorAll("figure svg, table")].map(one => {
              const {width, height} = one.getBoundingClientRect();
              return [one.tagName.toLowerCase(), Math.round(width), Math.round(height)];
            });
            document.body.dataset.seen = JSON.stringify(seen);"""
        reader, complaints = browse(page_of(charts=[CHART, CHART]), look)
        [seen] = [
            json.loads(attrs["data-seen"]) for _, attrs in reader.tags if "data-seen" in attrs
        ]
        assert [name for name, _, _ in seen] == ["svg", "svg", "table"]
        assert all(width > 200 and height > 100 for _, width, height in seen)
        assert complaints == []
