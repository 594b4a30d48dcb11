"""How a measured value is written for people, on the screen and on a page."""

from collections.abc import Collection, Iterable

from vitrail.bench.bands import band
from vitrail.bench.measurement import Row, Value

UNITS = {"ms": "ms", "s": "s", "mib": "MiB", "percent": "%"}
NAMES = {"gflops_per_s": "GFLOP/s", "mfu_percent": "MFU, %"}


def heading(column: str) -> str:
    """A column's name in words, its unit apart: `peak_mib` is `peak, MiB`."""
    name, _, unit = column.rpartition("_")
    words = f"{name}, {UNITS[unit]}" if name and unit in UNITS else column
    return NAMES.get(column, words).replace("_", " ")


def written(value: Value) -> str:
    """Four digits of a number, yes or no, a word as it is; a dash for nothing."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if value == 0 or abs(value) >= 1e-3 else f"{value:.1e}"


def written_band(row: Row, column: str) -> str:
    """The band beside a column as `low – high`; empty where the row has none."""
    ends = band(row, column)
    return "" if ends is None else f"{written(ends[0])} – {written(ends[1])}"


def is_number(values: Iterable[Value]) -> bool:
    """Whether what there is of a column are numbers, which stand to the right and sort by size."""
    there = [value for value in values if value is not None]
    return bool(there) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in there
    )


def has_figures(row: Row, keys: Collection[str]) -> bool:
    """Whether a row has a number beside the keys that say what it is of."""
    return any(is_number([value]) for column, value in row.items() if column not in keys)
