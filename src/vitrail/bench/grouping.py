"""Rows that belong together, because they agree in some of their columns."""

from collections.abc import Iterable, Sequence

from vitrail.bench.measurement import Row


def grouped(rows: Iterable[Row], columns: Sequence[str]) -> list[list[Row]]:
    """Rows that agree in these columns, in the order in which the first of each group comes."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return list(groups.values())
