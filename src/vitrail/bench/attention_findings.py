"""What the rows of `bench=attention` say: who is fastest where, and how time and memory grow."""

import re
from collections.abc import Sequence
from itertools import groupby

from vitrail.bench.bands import band, overlap
from vitrail.bench.grouping import grouped
from vitrail.bench.growth import exponent
from vitrail.bench.measurement import Chart, Findings, Point, Row
from vitrail.bench.memory import RESOLUTION_MIB
from vitrail.bench.values import written

# What is equal on a chart, whose x axis is the number of tokens and whose lines are backends.
SERIES = ("batch", "heads", "width", "mask", "pattern", "compiled", "device", "pass")
QUANTITIES = {"time_ms": "time, ms", "peak_mib": "peak memory, MiB"}
NOUNS = {"time_ms": "time", "peak_mib": "memory"}
STEADY = 1.5  # times the speed that one machine's matrix product may differ by
WRITTEN_OUT, FLASH = "eager", ("flash_attn", "sdpa_flash")


def findings(rows: Sequence[Row]) -> Findings:
    """Charts over the number of tokens where there are several, sentences, and every figure."""
    rows = sorted((row for row in rows if not row["refused"]), key=lambda row: row["tokens"])
    charts, sentences, figures = [], [], {}
    for series in grouped(rows, SERIES):
        lines = {_line(one[0]): one for one in grouped(series, ("dtype", "backend"))}
        if len({row["tokens"] for row in series}) > 1:
            charts += [chart(lines, quantity) for quantity in QUANTITIES]
        sentences += [told(one) for one in grouped(series, ("dtype",))]
        figures |= {
            _figure(f"{quantity}_exponent", line[0], "N"): round(power, 3)
            for quantity in QUANTITIES
            for line in lines.values()
            if (power := growth(line, quantity)) is not None
        }
    figures |= {
        _figure(quantity, row, row["tokens"]): row[quantity]
        for row in rows
        for quantity in QUANTITIES
        if row[quantity] is not None
    }
    figures |= {f"matmul_gflops_per_s/{row['dtype']}": row["matmul_gflops_per_s"] for row in rows}
    sentences += [line for one in grouped(rows, ("dtype",)) for line in unsteady(one)]
    return Findings([one for one in charts if one.lines], sentences, figures)


def growth(line: Sequence[Row], quantity: str) -> float | None:
    """The power of the number of tokens that a quantity of one backend and dtype grows with.

    Peaks that a process's count cannot tell from nothing are left out.
    """
    there = [row for row in line if _known(row, quantity)]
    return exponent([row["tokens"] for row in there], [row[quantity] for row in there])


def told(rows: Sequence[Row]) -> str:
    """All that is said of the rows of one series and dtype."""
    return ". ".join([_subject(rows[0]), fastest(rows), *compared(rows), *grown(rows)]) + "."


def unsteady(rows: Sequence[Row]) -> list[str]:
    """A warning where the machine's own matrix product was measured as two things in one dtype.

    It is measured once a command, and more often where the measurement was stopped and went on.
    """
    peaks = [row["matmul_gflops_per_s"] for row in rows]
    low, high = min(peaks), max(peaks)
    if high <= STEADY * low:
        return []
    both = f"{written(low)} and as {written(high)} GFLOP/s"
    said = f"{rows[0]['dtype']}: the matrix product was measured as {both}, so other work was "
    return [said + "going on: neither times nor shares of it compare between these rows."]


def fastest(rows: Sequence[Row]) -> str:
    """Which backend is fastest at which number of tokens.

    Backends whose bands meet that of the fastest are named with it, as equal.
    """

    def winners(place: Sequence[Row]) -> tuple[str, ...]:
        best = min(place, key=lambda row: row["time_ms"])
        return tuple(sorted(row["backend"] for row in place if alike(row, best)))

    parts = []
    for names, run in groupby(grouped(rows, ("tokens", "map")), key=winners):
        tokens = sorted({place[0]["tokens"] for place in run})
        where = f"{tokens[0]}" if len(tokens) == 1 else f"{tokens[0]} to {tokens[-1]}"
        equal = ", equal within noise" if len(names) > 1 else ""
        parts.append(f"at {where} tokens: {_listed(names)}{equal}")
    return f"Fastest {'; '.join(parts)}"


def compared(rows: Sequence[Row]) -> list[str]:
    """Attention written out against flash, at the fewest and the most tokens that both have."""
    flash = next((name for name in FLASH if any(row["backend"] == name for row in rows)), None)
    both = [
        pair
        for place in grouped(rows, ("tokens", "map"))
        if len(pair := [row for row in place if row["backend"] in (WRITTEN_OUT, flash)]) == 2
    ]
    if not both:
        return []
    parts = []
    for pair in [both[0], both[-1]] if len(both) > 1 else both:
        ours = next(row for row in pair if row["backend"] == WRITTEN_OUT)
        theirs = next(row for row in pair if row["backend"] == flash)
        parts.append(f"at {ours['tokens']} tokens {_time(ours, theirs)}{_memory(ours, theirs)}")
    return [f"{WRITTEN_OUT} beside {flash}: {'; '.join(parts)}"]


def grown(rows: Sequence[Row]) -> list[str]:
    """How time and memory of each backend grow; nothing for fewer than three lengths."""
    parts = []
    for line in sorted(grouped(rows, ("backend",)), key=lambda line: line[0]["backend"]):
        powers = [_power(line, column) for column in QUANTITIES if growth(line, column) is not None]
        parts += [f"{line[0]['backend']}'s {' and '.join(powers)}"] * bool(powers)
    ends = f"from {rows[0]['tokens']} to {rows[-1]['tokens']} tokens"
    return [f"Growth {ends}: {'; '.join(parts)}"] * bool(parts)


def chart(lines: dict[str, Sequence[Row]], quantity: str) -> Chart:
    """A quantity over the number of tokens, with the fitted powers in its note."""
    row = next(iter(lines.values()))[0]
    points = {
        name: [_point(one, quantity) for one in line if _known(one, quantity)]
        for name, line in lines.items()
    }
    powers = {name: growth(line, quantity) for name, line in lines.items()}
    fitted = [f"{name}: N^{power:.2f}" for name, power in powers.items() if power is not None]
    subject = _subject(row, dtype=False)
    return Chart(
        name=re.sub(r"\W+", "_", f"{quantity} {subject}").strip("_"),
        title=f"{NOUNS[quantity].capitalize()} of {subject}",
        x="tokens N",
        y=QUANTITIES[quantity],
        lines={name: line for name, line in points.items() if line},
        log=True,
        note=f"Least squares on both logarithms: {', '.join(fitted)}." if fitted else "",
    )


def alike(one: Row, other: Row) -> bool:
    """Whether the times may be two readings of one."""
    return overlap(band(one, "time_ms"), band(other, "time_ms"))


def _known(row: Row, quantity: str) -> bool:
    """Whether a figure is there, and large enough to mean anything."""
    least = RESOLUTION_MIB if quantity == "peak_mib" and row["device"] == "cpu" else 0.0
    return row[quantity] is not None and row[quantity] > least


def _power(line: Sequence[Row], quantity: str) -> str:
    """`memory as N^1.97`, and from where on, if the shortest are not in it."""
    first = next(row["tokens"] for row in line if _known(row, quantity))
    where = f" (from {first} on)" if first > line[0]["tokens"] else ""
    return f"{NOUNS[quantity]} as N^{growth(line, quantity):.2f}{where}"


def _time(ours: Row, theirs: Row) -> str:
    if alike(ours, theirs):
        return "equal time within noise"
    return f"{_ratio(ours['time_ms'], theirs['time_ms'])} times the time"


def _memory(ours: Row, theirs: Row) -> str:
    if not (_known(ours, "peak_mib") and _known(theirs, "peak_mib")):
        return ""
    return f" and {_ratio(ours['peak_mib'], theirs['peak_mib'])} times the memory"


def _ratio(one: float, other: float) -> str:
    """Three digits."""
    return written(float(f"{one / other:.3g}"))


def _point(row: Row, quantity: str) -> Point:
    return Point(row["tokens"], row[quantity], *(band(row, quantity) or (None, None)))


def _line(row: Row) -> str:
    return f"{row['backend']}, {row['dtype']}"


def _subject(row: Row, *, dtype: bool = True) -> str:
    """`float32 forward of (1, 2, N, 64)`, and whatever is not as usual."""
    unusual = {
        f"mask {row['mask']}": row["mask"] != "none",
        row["pattern"]: row["pattern"] != "Full()",
        "compiled": row["compiled"],
    }
    shape = f"({row['batch']}, {row['heads']}, N, {row['width']})"
    words = [f"{row['dtype']} {row['pass']}" if dtype else row["pass"], "of", shape]
    return ", ".join([" ".join(words), *(word for word, there in unusual.items() if there)])


def _figure(quantity: str, row: Row, tokens: int | str) -> str:
    """`time_ms/eager/float32/forward/1x2x64x64`, and behind it whatever is not as usual."""
    words = [quantity, row["backend"], row["dtype"], row["pass"]]
    words.append(f"{row['batch']}x{row['heads']}x{tokens}x{row['width']}")
    words += [row["map"].replace(" ", "")] * bool(row["map"] and tokens != "N")
    words += [row["mask"]] * (row["mask"] != "none")
    words += [row["pattern"]] * (row["pattern"] != "Full()")
    words += ["compiled"] * row["compiled"]
    return "/".join(words)


def _listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
