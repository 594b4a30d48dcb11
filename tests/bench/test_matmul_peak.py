"""The peak is that of the fastest product, in the dtype and on the clock that were asked for."""

import pytest
import torch

from vitrail.bench import matmul_peak as module
from vitrail.bench.matmul_peak import matmul_peak


def test_it_is_the_fastest_of_the_products(monkeypatch):
    monkeypatch.setitem(module.SIDES, "cpu", 8)
    monkeypatch.setattr(module, "SECONDS", 100.0)
    costs = [0.5, 0.5, 0.25, 0.75] * (module.ROUNDS // 4)
    # The clock is read at the start, around the warm-up, and in each round before, after and once
    # more to see whether time is up.
    ticks = [0.0, 0.0, 0.125]
    for number, cost in enumerate(costs):
        ticks += [number, number + cost, number + cost]
    reading = iter(ticks)
    peak = matmul_peak(torch.float64, "cpu", read=lambda device: next(reading))
    assert peak == 2 * 8**3 / 0.25


def test_it_is_measured_once():
    first = matmul_peak(torch.float32, "cpu")
    assert first > 0
    assert matmul_peak(torch.float32, "cpu") == first


@pytest.mark.gpu
def test_a_gpu_has_its_own():
    assert matmul_peak(torch.bfloat16, "cuda") > 1e12
