"""What the rows of bench=step say: who is fast, against timm, and what Lightning costs."""

from collections.abc import Iterator, Sequence

from vitrail.bench.bands import band, overlap
from vitrail.bench.measurement import Chart, Findings, Point, Row

LONG_MS = 100.0  # a step for which Lightning's time is told too


def findings(rows: Sequence[Row]) -> Findings:
    """Charts, sentences and figures; a difference within the noise is told as none."""
    measured = [row for row in rows if not row["refused"]]
    modes = dict.fromkeys(row["mode"] for row in measured)
    by_mode = {mode: [row for row in measured if row["mode"] == mode] for mode in modes}
    return Findings(
        charts=[_chart(mode, own) for mode, own in by_mode.items()],
        sentences=[sentence for mode, own in by_mode.items() for sentence in _told(mode, own)],
        figures={
            f"{row['mode']}/{row['member']}/{name}": row[name]
            for row in measured
            for name in ("images_per_second", "peak_mib", "mfu_percent", "overhead_percent")
            if row[name] is not None
        },
    )


def _told(mode: str, rows: Sequence[Row]) -> Iterator[str]:
    ours = [row for row in rows if row["member"] not in ("timm", "lightning")]
    best = min(ours, key=lambda row: row["step_ms"])
    alike = [row for row in ours if overlap(band(row, "step_ms"), band(best, "step_ms"))]
    names = " and ".join(row["member"] for row in alike)
    speed = f"{best['images_per_second']:,.0f} images/s"
    if len(alike) > 1:
        yield (
            f"{mode}: the fastest of vitrail's are {names}, with no difference between them beyond "
            f"the noise ({best['member']}: {speed}){_against_timm(best)}."
        )
    else:
        yield f"{mode}: the fastest of vitrail's is {names} with {speed}{_against_timm(best)}."
    if best["mfu_percent"] is not None:
        share = best["attention_percent"]
        attention = "" if share is None else f", and attention is {share:.0f} % of its time"
        yield (
            f"{mode}: {best['member']} reaches {best['mfu_percent']:.0f} % of this machine's "
            f"matrix product{attention}."
        )
    for row in rows:
        if row["overhead_ms"] is not None:
            yield _overhead(row)


def _against_timm(row: Row) -> str:
    if row["time_vs_timm"] is None:
        return ""
    low, high = band(row, "time_vs_timm")
    interval = f"95 % interval {low:.2f} to {high:.2f}"
    times = f"{row['time_vs_timm']:.2f} times as long as timm's"
    verdict = ", so the two cannot be told apart" if low <= 1 <= high else ""
    return f"; a step by {row['member']} takes {times} ({interval}{verdict})"


def _overhead(row: Row) -> str:
    (low, high), (least, most) = band(row, "overhead_ms"), band(row, "overhead_percent")
    if low <= 0 <= high:
        return (
            "training: Lightning's step cannot be told from the bare loop's (95 % interval "
            f"{least:+.1f} to {most:+.1f} %)."
        )
    return (
        f"training: Lightning takes {row['overhead_ms']:.2f} ms a step more than the bare loop "
        f"(95 % interval {low:.2f} to {high:.2f} ms), which is {row['overhead_percent']:.1f} % "
        f"({least:.1f} to {most:.1f} %) of this step, and {100 * row['overhead_ms'] / LONG_MS:.1f} "
        f"% of one of {LONG_MS:.0f} ms."
    )


def _chart(mode: str, rows: Sequence[Row]) -> Chart:
    points = {
        row["member"]: [
            Point(row["peak_mib"], row["images_per_second"], *band(row, "images_per_second"))
        ]
        for row in rows
        if row["peak_mib"] is not None
    }
    return Chart(
        name=f"{mode}_speed_memory",
        title=f"{mode}: speed against memory",
        x="peak memory, MiB",
        y="images a second",
        lines=points,
        note="Up and to the left is better. Bands hold 10 to 90 % of the rounds.",
    )
