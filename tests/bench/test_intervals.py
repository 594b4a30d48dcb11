"""Intervals against scipy's, and what they promise: the truth lies inside as often as they say."""

import random

import pytest
from scipy import stats

from vitrail.bench.intervals import (
    Interval,
    mean_interval,
    median_interval,
    share_interval,
    student_quantile,
)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 30, 101])
@pytest.mark.parametrize("probability", [0.025, 0.5, 0.6, 0.975, 0.9995])
def test_students_quantile_is_scipys(freedom, probability):
    expected = stats.t.ppf(probability, freedom)
    assert student_quantile(probability, freedom) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_the_interval_of_a_mean_is_students():
    values = [0.91, 0.93, 0.88, 0.95, 0.92]
    low, high = stats.t.interval(0.95, 4, loc=sum(values) / 5, scale=stats.sem(values))
    found = mean_interval(values)
    assert (found.value, found.low, found.high) == pytest.approx((sum(values) / 5, low, high))


def test_values_that_agree_by_chance_are_trusted_no_further_than_a_known_error_allows():
    assert mean_interval([0.9, 0.9]).high == 0.9
    found = mean_interval([0.9, 0.9], least_error=0.01)
    assert (found.low, found.high) == pytest.approx((0.9 - 0.0196, 0.9 + 0.0196), abs=1e-5)
    spread = mean_interval([0.5, 0.9])
    assert mean_interval([0.5, 0.9], least_error=0.01) == spread, "what they show is wider"


@pytest.mark.parametrize("right, count", [(0, 10), (10, 10), (9, 10), (350, 360), (1, 3)])
def test_the_interval_of_a_share_is_wilsons(right, count):
    expected = stats.binomtest(right, count).proportion_ci(method="wilson")
    found = share_interval(right, count)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert found.value == right / count


@pytest.mark.parametrize(
    "count, ranks", [(6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (12, (3, 10)), (25, (8, 18))]
)
def test_a_median_lies_between_the_ranks_of_the_tables(count, ranks):
    # Ranks as in Conover, Practical Nonparametric Statistics, of the binomial with p = 1/2.
    values = [float(rank) for rank in range(1, count + 1)]
    shuffled = random.Random(0).sample(values, count)
    found = median_interval(shuffled)
    assert (found.low, found.high) == ranks
    assert found.value == (count + 1) / 2
    inside = 1 - 2 * stats.binom.cdf(ranks[0] - 1, count, 0.5)
    assert inside >= 0.95
    assert 1 - 2 * stats.binom.cdf(ranks[0], count, 0.5) < 0.95, "and no narrower ranks do"


def test_a_median_of_skewed_values_lies_inside_as_often_as_promised():
    draw = random.Random(1)
    truth = 0.6931471805599453  # of the exponential distribution
    rounds = 2000
    inside = sum(
        median_interval([draw.expovariate(1.0) for _ in range(9)]).holds(truth)
        for _ in range(rounds)
    )
    assert 0.95 < inside / rounds < 0.98, "9 values allow 96.1 %"


@pytest.mark.parametrize(
    "function, arguments, message",
    [
        (mean_interval, ([1.0],), "1 values show no spread"),
        (median_interval, ([1.0] * 5,), "5 values bound no median at 95%"),
        (share_interval, (3, 2), "3 of 2 is no share"),
        (share_interval, (0, 0), "0 of 0 is no share"),
    ],
)
def test_too_little_to_go_by_is_refused(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)


def test_intervals_overlap_where_they_share_a_value():
    assert Interval(1, 0, 2).overlaps(Interval(3, 2, 4))
    assert not Interval(1, 0, 2).overlaps(Interval(3, 2.1, 4))
    assert Interval(3, 2.1, 4).overlaps(Interval(1, 0, 5))
