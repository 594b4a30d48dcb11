"""What the rows of `bench=attention` say: exponents, who is fastest where, and what noise hides."""

import pytest

from vitrail.bench.attention_findings import findings
from vitrail.bench.growth import exponent
from vitrail.bench.measurement import Row

SERIES = {
    "pass": "forward", "batch": 1, "heads": 2, "width": 64, "map": "", "dtype": "float32",
    "mask": "none", "pattern": "Full()", "compiled": False, "device": "cpu", "refused": "",
    "matmul_gflops_per_s": 100.0,
}  # fmt: skip
LENGTHS = (64, 256, 1024, 4096)


def row(backend: str, tokens: int, time_ms: float, peak_mib: float | None, **changes) -> Row:
    """Figures with a band of 10 % to either side."""
    times = {"time_ms": time_ms, "time_ms_p10": 0.9 * time_ms, "time_ms_p90": 1.1 * time_ms}
    return {
        **SERIES,
        "backend": backend,
        "tokens": tokens,
        **times,
        "peak_mib": peak_mib,
        **changes,
    }


def eager(tokens: int, **changes) -> Row:
    return row("eager", tokens, 1e-5 * tokens**2, 1e-3 * tokens**2, **changes)


def flash(tokens: int, **changes) -> Row:
    """Four times as slow at 64 tokens, equal at 256, and four times as fast at 1024."""
    return row("sdpa_flash", tokens, 1e-5 * 256 * tokens, 1e-1 * tokens, **changes)


BOTH = [make(tokens) for tokens in LENGTHS for make in (eager, flash)]


def test_an_exponent_is_that_of_the_power_behind_the_figures():
    assert exponent([64, 128, 4096], [3 * n**1.7 for n in (64, 128, 4096)]) == pytest.approx(1.7)
    assert exponent([64, 128], [1.0, 2.0]) is None
    assert exponent([64, 64, 128], [1.0, 1.1, 2.0]) is None


def test_a_machine_that_was_busy_for_a_part_of_it_is_said():
    rows = [eager(64), eager(256, matmul_gflops_per_s=40.0), eager(1024, matmul_gflops_per_s=90.0)]
    assert (
        findings(rows)
        .sentences[-1]
        .startswith(
            "float32: the matrix product was measured as 40 and as 100 GFLOP/s, so other work was"
        )
    )
    steady = [eager(64), eager(256, matmul_gflops_per_s=90.0)]
    assert not any("other work" in sentence for sentence in findings(steady).sentences)


def test_growth_is_told_in_figures_in_a_sentence_and_beside_the_chart():
    told = findings(BOTH)
    assert told.figures["time_ms_exponent/eager/float32/forward/1x2xNx64"] == 2.0
    assert told.figures["peak_mib_exponent/sdpa_flash/float32/forward/1x2xNx64"] == 1.0
    (sentence,) = told.sentences
    assert sentence.endswith(
        ". Growth from 64 to 4096 tokens: eager's time as N^2.00 and memory as N^2.00; "
        "sdpa_flash's time as N^1.00 and memory as N^1.00."
    )
    time, memory = told.charts
    assert time.note == (
        "Least squares on both logarithms: eager, float32: N^2.00, sdpa_flash, float32: N^1.00."
    )
    assert (time.x, time.y, time.log) == ("tokens N", "time, ms", True)
    assert memory.y == "peak memory, MiB"


def test_the_fastest_is_named_by_length_and_equal_ones_together():
    (sentence,) = findings(BOTH).sentences
    assert sentence.startswith(
        "float32 forward of (1, 2, N, 64). Fastest at 64 tokens: eager; at 256 tokens: eager and "
        "sdpa_flash, equal within noise; at 1024 to 4096 tokens: sdpa_flash. "
    )


def test_written_out_is_set_against_flash_at_both_ends():
    (sentence,) = findings(BOTH).sentences
    assert (
        ". eager beside sdpa_flash: at 64 tokens 0.25 times the time and 0.64 times the memory; "
        "at 4096 tokens 16 times the time and 41 times the memory. "
    ) in sentence


def test_times_whose_bands_meet_are_called_equal():
    rows = [row("eager", 64, 1.15, 8.0), row("sdpa_flash", 64, 1.0, 4.0)]
    (sentence,) = findings(rows).sentences
    assert sentence == (
        "float32 forward of (1, 2, N, 64). Fastest at 64 tokens: eager and sdpa_flash, equal "
        "within noise. eager beside sdpa_flash: at 64 tokens equal time within noise and 2 times "
        "the memory."
    )
    apart = [row("eager", 64, 1.3, 8.0), row("sdpa_flash", 64, 1.0, 4.0)]
    assert "Fastest at 64 tokens: sdpa_flash. " in findings(apart).sentences[0]


def test_peaks_that_a_process_cannot_tell_from_nothing_enter_no_fit_and_no_ratio():
    rows = [
        row("eager", tokens, 1.0, 0.9 if tokens == 64 else 1e-3 * tokens**2) for tokens in LENGTHS
    ]
    told = findings(rows)
    assert told.figures["peak_mib_exponent/eager/float32/forward/1x2xNx64"] == 2.0
    assert told.sentences[0].endswith(" and memory as N^2.00 (from 256 on).")
    (line,) = told.charts[1].lines.values()
    assert [point.x for point in line] == [256, 1024, 4096]
    counted = [{**one, "device": "cuda"} for one in rows]  # torch counts every byte
    assert len(next(iter(findings(counted).charts[1].lines.values()))) == 4


def test_lines_have_the_bands_of_their_rows_and_refused_rows_are_none():
    refused = eager(128) | {"refused": "cannot run on cpu", "time_ms": None, "peak_mib": None}
    time, _ = findings([*BOTH, refused]).charts
    assert [point.x for point in time.lines["eager, float32"]] == [*LENGTHS]
    first = time.lines["eager, float32"][0]
    assert (first.low, first.high) == pytest.approx((0.9 * first.y, 1.1 * first.y))
    assert findings([refused]) == findings([])


def test_dtypes_share_a_chart_and_passes_masks_and_patterns_have_their_own():
    half = [{**one, "dtype": "bfloat16"} for one in BOTH]
    assert len(findings([*BOTH, *half]).charts) == 2
    assert len(findings([*BOTH, *half]).charts[0].lines) == 4
    other = [{**one, "mask": "padding", "pattern": "Window(size=(4, 4))"} for one in BOTH]
    charts = findings([*BOTH, *other]).charts
    assert len({chart.name for chart in charts}) == len(charts) == 4
    assert charts[2].title == "Time of forward of (1, 2, N, 64), mask keys, Window(size=(4, 4))"


def test_a_single_length_has_sentences_and_figures_and_no_chart():
    told = findings([eager(64), flash(64)])
    assert not told.charts
    assert len(told.sentences) == 1
    assert told.figures["time_ms/eager/float32/forward/1x2x64x64"] == 0.04096
    assert told.figures["matmul_gflops_per_s/float32"] == 100.0


def test_figures_tell_every_row_apart():
    rows = [
        {**one, **change}
        for one in BOTH
        for change in (
            {}, {"mask": "padding"}, {"pattern": "Raster()"}, {"compiled": True}, {"heads": 3},
            {"pass": "forward+backward"}, {"dtype": "bfloat16"}, {"map": "8 x 8"},
        )
    ]  # fmt: skip
    times = [name for name in findings(rows).figures if name.startswith("time_ms/")]
    assert len(times) == len(rows)
