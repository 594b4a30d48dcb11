"""The band of a figure: how far it strays, and whether two figures differ by more than that."""

from collections.abc import Collection

from vitrail.bench.measurement import Row

ENDS = (("_p10", "_p90"), ("_low", "_high"))  # of times, and of 95 % intervals
Band = tuple[float, float]


def band(row: Row, column: str) -> Band | None:
    """The ends of the band that stands beside a column; None where the row has none."""
    for low, high in ENDS:
        ends = row.get(column + low), row.get(column + high)
        if None not in ends:
            return ends
    return None


def is_end(column: str, columns: Collection[str]) -> bool:
    """Whether a column is an end of another one's band, rather than a figure."""
    return any(
        column.endswith(end) and column.removesuffix(end) in columns
        for pair in ENDS
        for end in pair
    )


def overlap(one: Band, other: Band) -> bool:
    """Whether the bands share a value, so that the figures may be two readings of one thing."""
    return one[0] <= other[1] and other[0] <= one[1]
