"""Differences are found, and equal ones rarely called different; intervals are scipy's."""

import numpy as np
import pytest
from scipy import stats

from vitrail.bench.statistics import (
    NO_DIFFERENCE,
    Interval,
    exponent,
    mean_interval,
    paired_ratio,
    share_interval,
    unpaired_ratio,
    verdict,
)

SIMULATIONS = 200


def verdicts(factor: float, rounds: int, *, ratio=paired_ratio) -> list[str]:
    """Of simulated rounds of two backends, each with 10 % noise; the first takes `factor` times."""
    random = np.random.default_rng(0)
    said = []
    for _ in range(SIMULATIONS):
        one, other = random.normal(1.0, 0.1, (2, rounds))
        said.append(verdict(ratio(factor * one, other), "faster", "slower", even=1.0))
    return said


@pytest.mark.parametrize("ratio", [paired_ratio, unpaired_ratio])
def test_fifteen_percent_are_found_in_fifteen_rounds_with_ten_percent_of_noise(ratio):
    assert verdicts(1.15, 15, ratio=ratio).count("slower") >= 0.9 * SIMULATIONS
    assert verdicts(1 / 1.15, 15, ratio=ratio).count("faster") >= 0.9 * SIMULATIONS


@pytest.mark.parametrize("rounds", [3, 9, 15, 60])
def test_equal_ones_are_called_different_in_about_five_percent(rounds):
    wrong = SIMULATIONS - verdicts(1.0, rounds).count(NO_DIFFERENCE)
    assert wrong <= 0.1 * SIMULATIONS


def test_a_slow_machine_that_all_meet_and_one_slow_round_hide_nothing():
    random = np.random.default_rng(0)
    machine = random.uniform(1.0, 3.0, 15)  # other work, which both of a round meet
    one, other = 1.05 * machine, machine * random.normal(1.0, 0.01, 15)
    one[3] *= 5
    found = paired_ratio(one, other)
    assert found.low > 1
    assert found.value == pytest.approx(1.05, abs=0.02)
    assert unpaired_ratio(one, other).low < 1, "not paired, it could not be told"


def test_nine_rounds_are_students_t_on_the_logarithms():
    one, other = np.random.default_rng(0).normal(1.0, 0.1, (2, 9))
    logs = np.log(one / other)
    expected = np.exp(stats.t.interval(0.95, 8, loc=logs.mean(), scale=stats.sem(logs)))
    found = paired_ratio(one, other)
    assert (found.low, found.high) == pytest.approx((*expected,))


@pytest.mark.parametrize(
    "low, high, said", [(1.01, 2, "slower"), (0.5, 0.99, "faster"), (0.9, 1.1, NO_DIFFERENCE)]
)
def test_a_verdict_needs_the_whole_interval_on_one_side(low, high, said):
    assert verdict(Interval(1.0, low, high), "faster", "slower", even=1.0) == said


def test_a_mean_is_trusted_no_further_than_a_known_error_allows():
    values = [0.91, 0.93, 0.88, 0.95, 0.92]
    expected = stats.t.interval(0.95, 4, loc=np.mean(values), scale=stats.sem(values))
    found, _ = mean_interval(values)
    assert (found.low, found.high) == pytest.approx((*expected,))
    alike, _ = mean_interval([0.9, 0.9], min_error=0.01)
    assert (alike.low, alike.high) == pytest.approx((0.9 - 0.0196, 0.9 + 0.0196), abs=1e-5)
    assert mean_interval([0.5, 0.9], min_error=0.01) == mean_interval([0.5, 0.9])


def test_the_detectable_difference_is_found_in_most_cases():
    random, found = np.random.default_rng(0), 0
    detectable = np.mean([mean_interval(random.normal(0, 1, 5))[1] for _ in range(SIMULATIONS)])
    for _ in range(SIMULATIONS):
        found += mean_interval(random.normal(detectable, 1, 5))[0].low > 0
    assert 0.6 * SIMULATIONS < found < 0.9 * SIMULATIONS
    assert mean_interval([0.0, 0.0], min_error=1.0)[1] == pytest.approx(2.8, abs=0.01)


@pytest.mark.parametrize("right, count", [(0, 10), (10, 10), (9, 10), (350, 360), (1, 3)])
def test_the_interval_of_a_share_is_wilsons(right, count):
    z, share = stats.norm.ppf(0.975), right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * (share * (1 - share) / count + (z / (2 * count)) ** 2) ** 0.5
    found = share_interval(right, count)
    assert (found.low, found.high) == pytest.approx((middle - half, middle + half), abs=1e-12)
    assert found.scaled(100).columns("acc_percent")["acc_percent"] == pytest.approx(100 * share)


def test_an_exponent_is_that_of_the_power_and_needs_three_sizes():
    found = exponent([64, 128, 256, 1024], [3 * n**1.5 for n in (64, 128, 256, 1024)])
    assert (found.low, found.value, found.high) == pytest.approx((1.5, 1.5, 1.5))
    noisy = exponent([64, 128, 256, 512], [1.0, 2.2, 3.9, 8.0])
    assert noisy.low < 1 < noisy.high
    assert exponent([64, 64, 128], [1.0, 1.0, 2.0]) is None
