"""Figures are written with what can be told of them and no more."""

import pytest

from vitrail.bench.values import heading, is_number, written, written_band

from .made_up import row


@pytest.mark.parametrize(
    "value, words",
    [
        (None, "–"),
        (True, "yes"),
        (False, "no"),
        ("float32", "float32"),
        (4096, "4,096"),
        (0.0, "0"),
        (0.98661234, "0.9866"),
        (12.3456, "12.35"),
        (999.96, "1000"),
        (1234.56, "1,235"),
        (0.00123456, "0.001235"),
        (0.000012345, "1.2e-05"),
        (-0.5, "-0.5"),
    ],
)
def test_a_value_in_words(value, words):
    assert written(value) == words


@pytest.mark.parametrize(
    "column, words",
    {
        "images_per_second": "images per second",
        "peak_mib": "peak, MiB",
        "to_target_s": "to target, s",
        "mfu_percent": "MFU, %",
        "gflops_per_s": "GFLOP/s",
        "s": "s",
    }.items(),
)
def test_a_heading_is_a_column_s_name_in_words_and_its_unit(column, words):
    assert heading(column) == words


def test_the_band_is_that_of_percentiles_or_of_an_interval():
    assert written_band(row("eager", 64), "forward_ms") == "5.4 – 6.6"
    assert written_band({"acc": 0.9, "acc_low": 0.85, "acc_high": 0.95}, "acc") == "0.85 – 0.95"
    assert written_band(row("none", 64), "forward_ms") == ""
    assert written_band(row("eager", 64), "peak_mib") == ""


def test_a_column_of_numbers_may_have_gaps_but_no_words_and_no_switches():
    assert is_number([1, 2.5, None])
    assert not is_number([None, None])
    assert not is_number([1, "two"])
    assert not is_number([True, False])
