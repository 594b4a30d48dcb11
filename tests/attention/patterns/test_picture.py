"""The command that draws who is seen."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from matplotlib.image import imread

from vitrail.attention import patterns
from vitrail.attention.patterns.__main__ import COLOURS, main

MAP = "--grid 6 9 --query 2 4"
UNSEEN, SEEN, QUERY = (tuple(bytes.fromhex(colour[1:])) for colour in COLOURS)


def colours_of(path: Path) -> Counter[tuple[int, ...]]:
    """How many pixels of the picture have each colour."""
    pixels = (imread(path)[..., :3] * 255).round().astype("uint8").reshape(-1, 3)
    return Counter(map(tuple, pixels.tolist()))


def test_the_command_writes_a_picture_and_says_where_and_how_many_are_seen(tmp_path):
    answer = subprocess.run(
        [sys.executable, "-m", "vitrail.attention.patterns", "window", *MAP.split()],
        cwd=tmp_path, check=True, capture_output=True, text=True,
    )  # fmt: skip
    said = "Window(size=(4, 4), shift=(0, 0)): (2, 4) sees 16 of 54 tokens\nwindow.png\n"
    assert (answer.stdout, answer.stderr) == (said, "")
    assert colours_of(tmp_path / "window.png").keys() >= {UNSEEN, SEEN, QUERY}


@pytest.mark.parametrize("name", patterns.names())
def test_every_pattern_of_the_folder_is_a_word_of_the_command(name, tmp_path, capsys):
    path = tmp_path / "seen.png"
    main([name, *MAP.split(), "--prefix", "2", "--out", str(path)])
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{patterns.load(name)()}: (2, 4) sees ")
    assert said[0].endswith(" of 56 tokens")
    assert said[1:] == [str(path)]
    assert colours_of(path)[SEEN]


def test_the_fields_of_a_pattern_are_options(tmp_path, capsys):
    path = str(tmp_path / "seen.png")
    main(["window", *MAP.split(), "--size", "3", "2", "--shift", "1", "--out", path])
    main(["neighborhood", *MAP.split(), "--kernel", "2", "--dilation", "1", "3", "--out", path])
    main(["axial", *MAP.split(), "--axis", "both", "--out", path])
    assert capsys.readouterr().out.splitlines()[::2] == [
        "Window(size=(3, 2), shift=(1, 1)): (2, 4) sees 6 of 54 tokens",
        "Neighborhood(kernel=(2, 2), dilation=(1, 3)): (2, 4) sees 4 of 54 tokens",
        "Axial(axis='both'): (2, 4) sees 14 of 54 tokens",
    ]


def test_each_prefix_token_is_one_more_square_that_is_seen(tmp_path):
    squares = []
    for prefix in (0, 1, 8):  # more than there are rows
        path = tmp_path / f"{prefix}.png"
        main(["axial", *MAP.split(), "--prefix", str(prefix), "--out", str(path)])
        counts = colours_of(path)
        squares.append(counts[SEEN] / counts[QUERY])
    row = 9 - 1  # of which one is the query
    assert squares == pytest.approx([row, row + 1, row + 8], rel=0.05)


def test_all_patterns_are_drawn_side_by_side(tmp_path, capsys):
    path = tmp_path / "all.png"
    main(["all", *MAP.split(), "--out", str(path)])
    *said, where = capsys.readouterr().out.splitlines()
    examples = [str(each) for name in patterns.names() for each in patterns.load(name).examples()]
    assert [line.partition(": ")[0] for line in said] == examples
    assert where == str(path)
    counts = colours_of(path)
    assert counts[SEEN] > counts[QUERY] > 0


OWN = """
from dataclasses import dataclass
from vitrail.attention.patterns import Pattern

@dataclass(frozen=True)
class Diagonal(Pattern):
    step: int = 1

    def sees(self, query, key, grid):
        if self.step == 0:
            raise ValueError("a mistake of its own")
        return (query[0] - query[1] - key[0] + key[1]) % self.step == 0

class Nothing:
    pass
"""


def test_a_pattern_elsewhere_is_named_by_its_dotted_path(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_patterns.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    out = ["--out", str(tmp_path / "seen.png")]
    main(["own_patterns.Diagonal", *MAP.split(), "--step", "54", *out])
    assert capsys.readouterr().out.startswith("Diagonal(step=54): (2, 4) sees 6 of 54 tokens")
    with pytest.raises(ValueError, match="a mistake of its own"):  # with its traceback
        main(["own_patterns.Diagonal", *MAP.split(), "--step", "0", *out])
    with pytest.raises(SystemExit):
        main(["own_patterns.Nothing", *MAP.split(), *out])
    assert "own_patterns.Nothing must hold one subclass of Pattern" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (f"windw {MAP}", "pattern windw does not exist; use axial, full,"),
        ("window --grid 6 9 --query 6 1", "query 6 1 is not on the map; use row 0 to 5"),
        ("window --grid 6 9 --query 1 -1", "query 1 -1 is not on the map"),
        ("window --grid 0 9 --query 0 0", "Grid(rows=0, cols=9, prefix=0) is empty"),
        (f"window {MAP} --prefix -1", "no negative prefix"),
        (f"window {MAP} --shift 9", "use a smaller shift"),
        (f"window {MAP} --size 1 2 3", "size=[1, 2, 3] must be"),
        (f"window {MAP} --kernel 3", "unrecognized arguments: --kernel 3"),
        (f"axial {MAP} --axis x", "axis must be rows, cols or both, got x"),
        (f"window {MAP} --out nowhere/seen.png", "nowhere/seen.png: No such file or directory"),
        ("window --grid 6 9", "required: --query"),
        ("", "required: PATTERN"),
    ],
)
def test_bad_input_ends_with_one_line_and_1(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(arguments.split())
    assert stop.value.code == 1
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert error.startswith("error: ")
    assert message in error
    assert not list(tmp_path.iterdir())
