"""Tables, charts and the page show what they were given, on any names and any numbers."""

import re
from html.parser import HTMLParser

import pandas as pd
import pytest
from PIL import Image
from rich.console import Console

from vitrail.bench.report import (
    Chart,
    Report,
    draw,
    for_people,
    heading,
    print_table,
    publish,
    table_of,
    text,
)

from .made_up import row

NAN = float("nan")
FRAME = pd.DataFrame(
    {
        "tokens": [197, 64, 4096, 64, 4096],
        "time_ms": [3.0, 1.0, 900.0, 2.0, 500.0],
        "time_ms_p10": [2.8, 0.9, 850.0, None, None],
        "time_ms_p90": [3.1, 1.2, 950.0, None, None],
        "backend": ["eager"] * 3 + ["sdpa_flash"] * 2,
    }
)
NAMES = ["eager", "sdpa_flash", "$x^2$ <学>"]


def chart(frame=FRAME, *, log=False) -> Chart:
    return Chart("Speed", frame, "tokens", "time_ms", "backend", log=log)


def report(rows, **changes) -> Report:
    frame = table_of(rows)
    tables = {"Results": frame}
    return Report(**{"title": "a < b", "subtitle": "here", "command": "bench.py 'x&y'",
                     "rows": frame, "tables": tables} | changes)  # fmt: skip


@pytest.mark.parametrize(
    "value, words",
    [
        (None, "–"), (pd.NA, "–"), (NAN, "–"), (True, "yes"), (False, "no"), ("float32", "float32"),
        (4096, "4,096"), (0.0, "0"), (0.98661234, "0.9866"), (999.96, "1000"), (1234.56, "1,235"),
        (0.00123456, "0.001235"), (0.000012345, "1.2e-05"), (-0.5, "-0.5"),
    ],
)  # fmt: skip
def test_a_value_in_words(value, words):
    assert text(value) == words


@pytest.mark.parametrize(
    "column, words",
    {
        "images_per_second": "images per second", "peak_mib": "peak, MiB", "s": "s",
        "to_target_s": "to target, s", "mfu_percent": "MFU, %", "gflops_per_s": "GFLOP/s",
        "difference_points": "difference, percentage points",
    }.items(),
)  # fmt: skip
def test_a_heading_is_a_column_s_name_in_words_and_its_unit(column, words):
    assert heading(column) == words


def test_people_read_what_rows_have_in_common_once_and_bands_beside_figures():
    common, texts = for_people(table_of([row("eager", 64), row("none", 64)]))
    assert common == "tokens 64, dtype float32"
    assert texts.to_dict("list") == {
        "backend": ["eager", "none"], "forward, ms": ["6 (5.4 – 6.6)", "–"],
        "peak, MiB": ["10.5", "–"], "auto": ["yes", "–"],
        "refused": ["", "cannot run <b>here</b>"],
    }  # fmt: skip
    alone, all_of_it = for_people(table_of([row("eager", 64)]))
    assert (alone, all_of_it["dtype"].tolist()) == ("", ["float32"])
    equal = for_people(pd.DataFrame({"accuracy_percent": [20, 20], "layers": [2, 2]}))
    assert (equal[0], [*equal[1]]) == ("layers 2", ["accuracy, %"]), "a figure is in every row"


def test_the_terminal_has_numbers_to_the_right_and_names_as_they_are(capsys):
    rows = [row("eager", 64), row("[bold]:cat:[/]", 64)]
    print_table(Console(width=120), "64, [red]x[/]", table_of(rows))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "64, [red]x[/]"
    assert [word.strip() for word in lines[2].strip("┃").split("┃")][:2] == [
        "backend",
        "forward, ms",
    ]
    assert lines[4].split("│")[2] == "           6 "
    assert lines[5].split("│")[1].strip() == "[bold]:cat:[/]"


def test_lines_and_bands_lie_where_the_points_are_along_x():
    one = chart(log=True)
    axes = draw(one, one.points(), NAMES).axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    eager, flash = axes.get_lines()
    assert eager.get_xydata().tolist() == [[64, 1.0], [197, 3.0], [4096, 900.0]]
    assert flash.get_xydata().tolist() == [[64, 2.0], [4096, 500.0]]
    band = axes.collections[0].get_paths()[0].vertices
    assert {0.9, 1.2, 850.0, 950.0} <= {float(y) for y in band[:, 1]}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["64", "197", "4096"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("tokens", "time, ms")


def test_what_has_no_logarithm_or_no_figure_is_not_drawn_and_bars_end_at_zero():
    frame = FRAME.assign(time_ms=[0.0, -1.0, None, NAN, 2.0], time_ms_p10=-3.0, time_ms_p90=NAN)
    assert chart(frame, log=True).points()["y"].tolist() == [2.0]
    points = chart(frame).points()
    assert points["y"].tolist() == [-1.0, 0.0, 2.0]
    assert points["low"].tolist() == [0.0] * 3
    assert points["high"].tolist() == points["y"].tolist()


@pytest.mark.parametrize("log", [False, True])
def test_one_point_and_strange_names_are_drawn(log):
    frame = FRAME.iloc[:1].assign(backend="$x^2$ <学>")
    one = Chart("$\\frac <&>", frame, "tokens", "time_ms", "backend", log=log)
    figure = draw(one, one.points(), NAMES)
    assert [t.get_text() for t in figure.axes[0].get_legend().get_texts()] == ["$x^2$ <学>"]


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.sources, self.open = [], []

    def handle_starttag(self, tag, attrs):
        self.sources += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_needs_no_other_file_and_shows_everything_as_it_is(tmp_path):
    rows = [row("eager", 64), row("a & <b>", 64), row("none", 64)]
    details = {"Config": {"model": {"dim": "<48>"}}}
    pictures = publish(tmp_path, report(rows, charts=[chart()], details=details))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert [source[:22] for source in tags.sources] == ["data:image/png;base64,"]
    assert not re.search(r"https?://", page)
    for part in (
        "<title>a &lt; b", "a &amp; &lt;b&gt;", "6 (5.4 – 6.6)", "dim: &lt;48&gt;",
        "cannot run &lt;b&gt;here", "bench.py &#x27;x&amp;y&#x27;", "3 rows; all of",
    ):  # fmt: skip
        assert part in page
    assert '<div class="scroll"><table' in page, "a wide table scrolls"
    with Image.open(pictures["Speed"]) as image:
        assert len(image.convert("RGB").getcolors(1_000_000)) > 50


def test_a_chart_without_figures_and_a_table_without_rows_are_left_out(tmp_path):
    empty = FRAME.assign(time_ms=None)
    rows = [row("eager", 64)]
    found = publish(tmp_path, report(rows, charts=[chart(empty)], tables={"Nothing": FRAME[:0]}))
    assert found == {}
    assert not (tmp_path / "charts").exists()
    page = (tmp_path / "report.html").read_text()
    assert "<img" not in page
    assert "Nothing" not in page


def test_the_csv_has_every_column_and_whole_numbers_stay_whole(tmp_path):
    rows = [row("eager", 64, rounds=3), row('a "b", c\nd', 64), row("none", 64)]
    publish(tmp_path, report(rows))
    table = pd.read_csv(tmp_path / "results.csv", dtype=str, keep_default_na=False)
    assert table["backend"].tolist() == ["eager", 'a "b", c\nd', "none"]
    assert table["rounds"].tolist() == ["3", "", ""]
    assert table["auto"].tolist() == ["True", "False", ""]


def test_a_page_that_cannot_be_written_is_named(tmp_path, full_disk):
    with full_disk(100), pytest.raises(OSError, match=r"results\.csv|report\.html|\.png"):
        publish(tmp_path, report([row("eager", number) for number in range(9)]))
