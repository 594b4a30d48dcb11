"""What the rows of bench=accuracy say: means over seeds, and whether backends differ in them."""

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from statistics import fmean

from vitrail.bench.intervals import CONFIDENCE, Interval, mean_interval, share_interval
from vitrail.bench.measurement import Chart, Findings, Point, Row

Runs = Mapping[int, Row]  # the row of the run as it was trained, by seed


def findings(rows: Sequence[Row], target: float) -> Findings:
    """Charts, sentences and figures; the first backend is the one that others are held against."""
    measured = [row for row in rows if not row["refused"]]
    trained: dict[str, dict[int, Row]] = {}
    for row in measured:
        if row["evaluated_with"] == row["trained_with"]:
            trained.setdefault(row["trained_with"], {})[row["seed"]] = row
    means = {name: mean(runs) for name, runs in trained.items()}
    first, *others = trained or [""]
    return Findings(
        charts=_charts(trained, means) if trained else (),
        sentences=[
            *(_of(name, trained[name], means[name], target) for name in trained),
            *(
                verdict(first, trained[first], name, trained[name], among=len(others))
                for name in others
            ),
            *_drifts(measured),
        ],
        figures=dict(_figures(trained, means, measured)),
    )


def mean(runs: Runs) -> Interval:
    """The accuracy over seeds; of one seed, that of so many images.

    Images are the same for every seed, so no number of seeds makes the interval narrower than they
    allow.
    """
    shares = [row["accuracy"] for row in runs.values()]
    if len(shares) == 1:
        [row] = runs.values()
        return share_interval(round(row["accuracy"] * row["images"]), row["images"])
    share, images = fmean(shares), next(iter(runs.values()))["images"]
    return mean_interval(shares, least_error=sqrt(share * (1 - share) / images))


def verdict(one: str, its: Runs, other: str, others: Runs, *, among: int) -> str:
    """Whether two backends come to the same accuracy, in a sentence that says how that was told.

    Runs of one seed begin alike and see the same images in the same order: the t test is of their
    differences. Where these agree by chance, they are trusted no further than the images allow,
    whose share of errors is that of two independent models at most. among: how many such
    comparisons are made together; all of them are right 95 % of the time.
    """
    seeds = [seed for seed in its if seed in others]
    if len(seeds) < 2:
        alike = mean(its).overlaps(mean(others))
        says = "equal within noise" if alike else "not equal"
        return (
            f"{one} and {other}: {says}; their 95 % intervals, of one seed's images, "
            f"{'overlap' if alike else 'do not overlap'}. Two seeds would tell more."
        )
    differences = [others[seed]["accuracy"] - its[seed]["accuracy"] for seed in seeds]
    share = fmean(run[seed]["accuracy"] for run in (its, others) for seed in seeds)
    images = its[seeds[0]]["images"]
    interval = mean_interval(
        differences,
        confidence=1 - (1 - CONFIDENCE) / among,
        least_error=sqrt(2 * share * (1 - share) / images / len(seeds)),
    )
    says = "equal within noise" if interval.holds(0.0) else "not equal"
    together = f" for all {among} comparisons together" if among > 1 else ""
    return (
        f"{one} and {other}: {says}; {other} less {one} is {_points(interval.value)} points, 95 % "
        f"interval {_points(interval.low)} to {_points(interval.high)}{together} (t test on "
        f"{len(seeds)} paired seeds, trusted no further than {images:,} images allow)."
    )


def _of(name: str, runs: Runs, accuracy: Interval, target: float) -> str:
    rows = list(runs.values())
    how = (
        f"Student's t over {len(runs)} seeds, no narrower than {rows[0]['images']:,} images allow"
        if len(runs) > 1
        else "Wilson, one seed"
    )
    took = _mean(rows, "train_s")
    there = [row["to_target_s"] for row in rows if row["to_target_s"] is not None]
    reached = (
        f", and {_percent(target)} on val after {fmean(there):.1f} s"
        if len(there) == len(rows)
        else f"; {len(rows) - len(there)} of {len(rows)} did not reach {_percent(target)} on val"
    )
    time = "" if took is None else f"; training took {_seconds(rows, took)}{reached}"
    used = " or ".join(dict.fromkeys(row["layers"] for row in rows))
    chose = f" (computed by {used})" if used != name else ""
    return (
        f"{name}{chose}: {_percent(accuracy.value)} of {rows[0]['split']}, 95 % interval "
        f"{_percent(max(accuracy.low, 0.0))} to {_percent(min(accuracy.high, 1.0))} ({how}){time}."
    )


def _drifts(rows: Sequence[Row]) -> Iterator[str]:
    drifted = [row for row in rows if row["drift_largest"] is not None]
    if not drifted:
        return
    far = max(drifted, key=lambda row: row["drift_relative"])
    changed = max(drifted, key=lambda row: row["changed_predictions"])
    which = f"{far['evaluated_with']} on a checkpoint of {far['trained_with']}"
    yield (
        "Evaluated by another backend than it was trained with, a checkpoint gives logits that are "
        f"{far['drift_relative']:.1e} away at most, relative in the L2 norm ({which}, the largest "
        "difference "
        f"{max(row['drift_largest'] for row in drifted):.1e}), and changes "
        f"{changed['changed_predictions']} of {changed['images']:,} predictions at most."
    )


def _charts(trained: Mapping[str, Runs], means: Mapping[str, Interval]) -> list[Chart]:
    fast = {name: _mean(list(runs.values()), "images_per_second") for name, runs in trained.items()}
    slow = {name: _mean(list(runs.values()), "train_s") for name, runs in trained.items()}
    return [
        Chart(
            name=name,
            title=title,
            x=x,
            y="accuracy",
            lines={
                backend: [Point(where[backend], one.value, one.low, one.high)]
                for backend, one in means.items()
                if where[backend] is not None
            },
            note="Bars are 95 % intervals over seeds, or over images where there is one seed.",
        )
        for name, title, x, where in (
            ("accuracy_speed", "Accuracy against speed", "training, images a second", fast),
            ("accuracy_time", "Accuracy against time to finish", "training, seconds", slow),
        )
    ]


def _figures(
    trained: Mapping[str, Runs], means: Mapping[str, Interval], rows: Sequence[Row]
) -> Iterator[tuple[str, float]]:
    for name, runs in trained.items():
        yield f"{name}/accuracy", means[name].value
        for column in ("train_s", "to_target_s", "images_per_second"):
            if (value := _mean(list(runs.values()), column)) is not None:
                yield f"{name}/{column}", value
    drifts = [row["drift_relative"] for row in rows if row["drift_relative"] is not None]
    if drifts:
        yield "drift_relative", max(drifts)


def _mean(rows: Sequence[Row], column: str) -> float | None:
    """Over runs that all have the figure; None where one lacks it."""
    values = [row[column] for row in rows]
    return None if None in values else fmean(values)


def _seconds(rows: Sequence[Row], mean: float) -> str:
    """A mean, and what it is of: one run may have been stopped, or met other work."""
    ends = sorted(row["train_s"] for row in rows)
    return f"{mean:.1f} s" + (f" ({ends[0]:.1f} to {ends[-1]:.1f})" if len(rows) > 1 else "")


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _points(share: float) -> str:
    """A difference of accuracies in percentage points."""
    return f"{100 * share:+.2f}"
