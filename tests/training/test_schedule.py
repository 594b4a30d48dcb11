import math

import pytest
import torch

from vitrail.training.schedule import WarmupCosine


def test_the_rate_rises_in_equal_steps_and_falls_as_half_a_cosine():
    factors = [WarmupCosine(warmup=0.3, final=0.1).factor(step, 10) for step in range(11)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    half = (math.cos(math.pi * 2 / 7) + 1) / 2
    assert factors[5] == pytest.approx(0.1 + 0.9 * half)
    assert factors[10] == pytest.approx(0.1)


@pytest.mark.parametrize(
    "warmup, final, expected",
    [
        (0.0, 1.0, [1.0, 1.0, 1.0, 1.0, 1.0]),
        (1.0, 0.0, [0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.0, 0.0, [1.0, (2 + math.sqrt(2)) / 4, 0.5, (2 - math.sqrt(2)) / 4, 0.0]),
    ],
)
def test_warm_up_and_fall_may_each_be_absent(warmup, final, expected):
    schedule = WarmupCosine(warmup=warmup, final=final)
    assert [schedule.factor(step, 4) for step in range(5)] == pytest.approx(expected)


def test_beyond_its_end_the_rate_stays_at_the_final_one():
    assert WarmupCosine(warmup=0.1, final=0.2).factor(500, 100) == pytest.approx(0.2)


def test_groups_keep_their_own_peaks():
    groups = [{"params": [torch.zeros(1)], "lr": 0.4}, {"params": [torch.zeros(1)], "lr": 0.1}]
    optimizer = torch.optim.SGD(groups)
    scheduler = WarmupCosine(warmup=0.5, final=0.0).attach(optimizer, 2)
    assert scheduler.get_last_lr() == [0.2, 0.05]
    optimizer.step()
    scheduler.step()
    assert scheduler.get_last_lr() == [0.4, 0.1]


@pytest.mark.parametrize("given", [{"warmup": 5, "final": 0}, {"warmup": 0, "final": -0.1}])
def test_what_is_no_share_is_refused(given):
    with pytest.raises(ValueError, match="is a share; use a number from 0 to 1"):
        WarmupCosine(**given)
