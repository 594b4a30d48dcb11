"""How far to trust a mean, a share or a median: intervals, and what lies inside the noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import atan, comb, cos, pi, sin, sqrt
from statistics import NormalDist, fmean, median, stdev

from vitrail.errors import UserError

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A value and the ends between which it is to be looked for."""

    value: float
    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def overlaps(self, other: "Interval") -> bool:
        return self.low <= other.high and other.low <= self.high


def mean_interval(
    values: Sequence[float], *, confidence: float = CONFIDENCE, least_error: float = 0.0
) -> Interval:
    """The mean of two or more values, Student's t for the spread that they show themselves.

    least_error: a standard error of the mean that is known from elsewhere; few values may lie
    closer together by chance than it allows, and then it speaks in their place.
    """
    if len(values) < 2:
        raise UserError(f"{len(values)} values show no spread; give 2 or more")
    mean, count = fmean(values), len(values)
    beyond = (1 - confidence) / 2
    half = max(
        student_quantile(1 - beyond, count - 1) * stdev(values) / sqrt(count),
        NormalDist().inv_cdf(1 - beyond) * least_error,
    )
    return Interval(mean, mean - half, mean + half)


def share_interval(right: int, count: int, *, confidence: float = CONFIDENCE) -> Interval:
    """A share of successes among `count` trials; the score interval of Wilson (1927)."""
    if not 0 <= right <= count or count < 1:
        raise UserError(f"{right} of {count} is no share; give counts from 0 to 1 or more")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half))


def median_interval(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Interval:
    """The median, between two of the values themselves, whatever they are distributed like.

    Between the k-th smallest and the k-th largest of n values lies the true median, unless fewer
    than k of them fall on one side of it: a matter of n fair coins (Thompson 1936). Raises
    ValueError for fewer than 6 values at 95 %, of which not even the outermost two are sure enough.
    """
    count, ordered = len(values), sorted(values)
    rank = 0
    while 2 * _at_most(rank, count) <= 1 - confidence:
        rank += 1
    if rank == 0:
        raise UserError(f"{count} values bound no median at {confidence:.0%}; give 6 or more")
    return Interval(median(values), ordered[rank - 1], ordered[-rank])


def student_quantile(probability: float, freedom: int) -> float:
    """The t below which Student's distribution with `freedom` degrees has that probability."""
    low, high = 0.0, 1.0
    if probability < 0.5:
        return -student_quantile(1 - probability, freedom)
    while _student(high, freedom) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _student(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def _student(t: float, freedom: int) -> float:
    """Student's distribution function for t >= 0 (Abramowitz & Stegun 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(freedom))
    term = cos(angle) if freedom % 2 else 1.0
    total = 0.0
    for k in range(2 + freedom % 2, freedom + 1, 2):
        total += term
        term *= cos(angle) ** 2 * (k - 1) / k
    if freedom % 2:
        return 0.5 + (angle + sin(angle) * total) / pi
    return 0.5 + sin(angle) * total / 2


def _at_most(most: int, count: int) -> float:
    """The chance of at most so many heads among `count` fair coins."""
    return sum(comb(count, heads) for heads in range(most + 1)) / 2**count
