"""What measured figures allow to be said: intervals, verdicts on differences, fitted exponents."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.stats import mstats

CONFIDENCE = 0.95
POWER = 0.8  # the chance at which a true difference counts as detectable
NO_DIFFERENCE = "no difference shown"
ENDS = ("_low", "_high")  # of an interval, behind the name of its figure's column
BAND = ("_p10", "_p90")  # of the rounds


@dataclass(frozen=True)
class Interval:
    """A value and the ends of its 95 % interval, or of the band that its rounds lie in."""

    value: float
    low: float
    high: float

    def columns(self, name: str, ends: tuple[str, str] = ENDS) -> dict[str, float]:
        """As columns of a row: `name`, `name_low` and `name_high`."""
        return {name: self.value, name + ends[0]: self.low, name + ends[1]: self.high}

    def scaled(self, factor: float, offset: float = 0.0) -> "Interval":
        """value * factor + offset; a negative factor swaps the ends."""
        value, *ends = (factor * end + offset for end in (self.value, self.low, self.high))
        return Interval(value, *sorted(ends))


def verdict(interval: Interval, below: str, above: str, *, even: float) -> str:
    """`below` or `above` where the whole interval lies on that side of `even`."""
    if interval.low > even:
        return above
    return below if interval.high < even else NO_DIFFERENCE


def paired_ratio(times: Sequence[float], baseline: Sequence[float]) -> Interval:
    """Times over the baseline's, round by round; both were timed in turn within each round.

    Student's t on the mean logarithm of the ratios. From ten rounds on a tenth of them is trimmed
    at either end, since other work on a machine makes single rounds long (Tukey and McLaughlin
    1963). Every pair has its own 5 % of false alarms, and the fastest of several is itself a
    choice made from these rounds.
    """
    logs = np.log(np.divide(times, baseline))
    trimmed = len(logs) // 10 / len(logs) + 1e-9  # scipy fails on limits of 0
    limits = (trimmed, trimmed)
    low, high = mstats.trimmed_mean_ci(logs, limits=limits, alpha=1 - CONFIDENCE)
    return Interval(*map(float, np.exp([mstats.trimmed_mean(logs, limits=limits), low, high])))


def unpaired_ratio(times: Sequence[float], baseline: Sequence[float]) -> Interval:
    """Times over the baseline's, which were measured apart: Welch's t on their logarithms.

    The interval holds the spread of the rounds, and not what changed between two measurements.
    """
    one, other = np.log(times), np.log(baseline)
    ends = stats.ttest_ind(one, other, equal_var=False).confidence_interval(CONFIDENCE)
    return Interval(*map(float, np.exp([one.mean() - other.mean(), ends.low, ends.high])))


def mean_interval(values: Sequence[float], *, min_error: float = 0.0) -> tuple[Interval, float]:
    """The mean of two or more values by Student's t, and the detectable difference from 0.

    The latter is a true mean that the test tells from 0 in about 80 % of cases. min_error: a
    standard error of the mean that is known from elsewhere; few values may agree by chance, and
    then it stands in their place.
    """
    mean, error = float(np.mean(values)), float(stats.sem(values))
    ends = (1 + CONFIDENCE) / 2, POWER
    own = error * stats.t.ppf(ends, len(values) - 1)
    known = min_error * stats.norm.ppf(ends)
    half, detectable = max(own[0], known[0]), max(own.sum(), known.sum())
    return Interval(mean, mean - float(half), mean + float(half)), float(detectable)


def share_interval(right: int, count: int) -> Interval:
    """A share of successes among `count` trials, with Wilson's score interval."""
    ends = stats.binomtest(right, count).proportion_ci(CONFIDENCE, method="wilson")
    return Interval(right / count, float(ends.low), float(ends.high))


def exponent(sizes: Sequence[float], values: Sequence[float]) -> Interval | None:
    """p of value = c * size**p, by least squares on both logarithms; None below three sizes."""
    if len(set(sizes)) < 3:
        return None
    fit = stats.linregress(np.log(sizes), np.log(values))
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(sizes) - 2) * fit.stderr)
    return Interval(float(fit.slope), float(fit.slope) - half, float(fit.slope) + half)
