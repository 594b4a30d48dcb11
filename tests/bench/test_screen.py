"""What is printed while a measurement runs: tables, reasons below them, and how long it takes."""

import io

from rich.console import Console

from vitrail.bench.measurement import Cell
from vitrail.bench.screen import Screen

from .made_up import MadeUp, row

CELLS = [Cell(f"tokens={count}", f"{count} tokens, [red]x[/]") for count in (64, 197, 1024, 4096)]


class Clock:
    """Seconds that pass when they are told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def screen_of(clock=None, width=120):
    file = io.StringIO()
    console = Console(file=file, width=width)
    return Screen(
        MadeUp.keys, MadeUp.columns, len(CELLS), console=console, read=clock or Clock()
    ), file


def test_the_time_left_is_that_of_the_cells_to_come_at_the_pace_of_those_measured():
    clock = Clock()
    screen, file = screen_of(clock)
    screen.kept(CELLS[0])
    screen.begin(CELLS[1])
    assert "1 of 4; now: 197 tokens, [red]x[/]" in file.getvalue()
    assert "left" not in file.getvalue()
    clock.now += 60
    screen.measured(CELLS[1], [row("eager", 197)])
    screen.begin(CELLS[2])
    assert "2 of 4, 0:01:00 passed, about 0:02:00 left; now: 1024 tokens" in file.getvalue()


def test_a_table_has_the_columns_that_the_measurement_names_and_bands_beside_figures():
    screen, file = screen_of()
    screen.measured(CELLS[0], [row("eager", 64), row("[bold]:cat:[/]", 64)])
    lines = file.getvalue().splitlines()
    assert lines[0].strip() == CELLS[0].title
    heads = [word.strip() for word in lines[2].strip("┃").split("┃")]
    assert heads == ["backend", "forward, ms", "peak, MiB", "auto"]
    cells = [word.strip() for word in lines[4].strip("│").split("│")]
    assert cells == ["eager", "6 (5.4 – 6.6)", "10", "yes"]
    assert lines[5].split("│")[1].strip() == "[bold]:cat:[/]"


def test_what_cannot_be_measured_is_a_line_below_the_table_as_it_was_written():
    screen, file = screen_of()
    reason = "cannot take [64, 65] keys: use [/b] or :smile:"
    screen.measured(CELLS[0], [row("eager", 64), row("none", 64, refused=reason)])
    lines = file.getvalue().splitlines()
    assert lines[-1] == f"none: {reason}"
    assert sum("none" in line for line in lines) == 1


def test_a_row_with_figures_and_a_reason_has_both():
    screen, file = screen_of()
    screen.measured(CELLS[0], [row("eager", 64, forward_ms=None, refused="forward_ms is nan")])
    assert "│ eager" in file.getvalue()
    assert file.getvalue().endswith("eager: forward_ms is nan\n")


def test_a_cell_in_which_nothing_could_be_measured_has_no_empty_table():
    screen, file = screen_of()
    screen.measured(CELLS[0], [row("none", 64)])
    assert file.getvalue() == "none: cannot run <b>here</b>\n"
