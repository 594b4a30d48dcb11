"""Charts show what they were given, on any names and any numbers."""

import re
from xml.etree import ElementTree

import pytest
from PIL import Image

from vitrail.bench.charts import STAND_IN, _drawable, _figure, styles, svg, write_png
from vitrail.bench.measurement import Chart, Point

LINES = {
    "eager": [
        Point(64, 1.0, 0.9, 1.2),
        Point(197, 3.0, 2.8, 3.1),
        Point(4096, 900.0, 850.0, 950.0),
    ],
    "sdpa_flash": [Point(64, 2.0), Point(4096, 500.0)],
}


def chart(lines=LINES, **changes):
    return Chart(
        **{"name": "speed", "title": "Speed", "x": "N", "y": "ms", "lines": lines} | changes
    )


def axes_of(one):
    return _figure(one, styles([one]), "#222222").axes[0]


def test_a_png_is_written_whole_and_is_no_blank_sheet(tmp_path):
    path = tmp_path / "speed.png"
    write_png(path, chart(log=True), styles([chart()]))
    with Image.open(path) as image:
        assert len(image.convert("RGB").getcolors(1_000_000)) > 50
    assert [file.name for file in tmp_path.iterdir()] == ["speed.png"]


def test_lines_and_bands_lie_where_the_points_are():
    axes = axes_of(chart(log=True))
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    eager, flash = axes.get_lines()
    assert eager.get_xydata().tolist() == [[64, 1.0], [197, 3.0], [4096, 900.0]]
    assert flash.get_xydata().tolist() == [[64, 2.0], [4096, 500.0]]
    band = axes.collections[0].get_paths()[0].vertices
    assert {0.9, 1.2, 850.0, 950.0} <= {float(y) for y in band[:, 1]}
    assert [text.get_text() for text in axes.get_xticklabels()] == ["64", "197", "4096"]
    assert axes_of(chart()).get_xscale() == "linear"


def test_ticks_that_would_run_together_are_left_out():
    axes = axes_of(
        chart({"eager": [Point(64, 1), Point(65, 2), Point(192, 3), Point(197, 4)]}, log=True)
    )
    assert [text.get_text() for text in axes.get_xticklabels()] == ["64", "192"]


def test_a_line_keeps_its_look_in_every_chart():
    other = chart({"sdpa_flash": LINES["sdpa_flash"]}, name="memory")
    looks = styles([chart(), other])
    assert set(looks) == {"eager", "sdpa_flash"}
    colours = [
        _figure(one, looks, "#222222").axes[0].get_lines()[-1].get_color()
        for one in (chart(), other)
    ]
    assert colours[0] == colours[1]


def test_forty_lines_have_forty_looks():
    looks = styles([chart({f"backend {number}": [] for number in range(40)})])
    assert len({tuple(look.values()) for look in looks.values()}) == 40


def test_what_has_no_logarithm_or_is_not_finite_is_not_drawn():
    nan = float("nan")
    points = [Point(4, 1), Point(2, 0), Point(3, nan), Point(1, 5), Point(-1, 2)]
    assert _drawable(points, log=True) == [Point(1, 5), Point(4, 1)]
    assert _drawable(points, log=False) == [Point(-1, 2), Point(1, 5), Point(2, 0), Point(4, 1)]


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "lines", [{}, {"eager": []}, {"eager": [Point(0, 0)]}, {"$x^2$ 学": [Point(1, 1, 0, 2)]}]
)
def test_little_to_draw_and_strange_names_are_no_error(tmp_path, lines, log):
    one = chart(lines, log=log, title="$\\frac", x="a_b^{", y="<&>")
    write_png(tmp_path / "one.png", one, styles([one]))
    ElementTree.fromstring(svg(one, styles([one])))


def test_the_svg_takes_the_ink_of_its_page_and_asks_for_nothing_from_outside():
    text = svg(chart(log=True), styles([chart()]))
    assert text.startswith("<svg")
    assert STAND_IN not in text
    assert text.count("currentColor") > 10
    namespaces = ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink")
    assert {*re.findall(r'https?://[^"\s<]+', text)} <= {*namespaces}
    assert ">4096</text>" in text


def test_two_svgs_on_one_page_share_no_id():
    charts = [chart(), chart(name="memory")]
    ids = [{*re.findall(r'\bid="([^"]+)"', svg(one, styles(charts)))} for one in charts]
    assert ids[0]
    assert not ids[0] & ids[1]
