"""`bench=attention`: what is timed, how, what is not and why, and that a pattern is computed."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vitrail.attention import Grid, attend, backends
from vitrail.attention.backends import flex
from vitrail.attention.backends.eager import Eager
from vitrail.attention.backends.sdpa_flash import SdpaFlash
from vitrail.attention.patterns import GridPattern
from vitrail.attention.patterns.axial import Axial
from vitrail.attention.patterns.full import Full
from vitrail.attention.patterns.neighborhood import Neighborhood
from vitrail.attention.patterns.raster import Raster
from vitrail.attention.patterns.window import Window
from vitrail.attention.selection import tune
from vitrail.attention.selection.requests import Recorder
from vitrail.bench import attention_bench
from vitrail.bench.attention_bench import AttentionBench
from vitrail.bench.attention_call import AttentionCall, function_of, read_shape
from vitrail.bench.device import RESOLUTION_MIB, peak_mib
from vitrail.bench.report import Row, table_of

TINY = {"shapes": [[2, 2, 15, 8]], "dtypes": ["float32"], "masks": ["none"], "rounds": 3}
BOTH = ("forward", "forward+backward")


@pytest.fixture(autouse=True)
def only_what_is_looked_at_takes_time(monkeypatch):
    """Peaks are made up, auto measures nothing, and flex, which would be compiled, is refused."""
    monkeypatch.setattr(attention_bench, "peak_mib", lambda *_, device: 1.5)
    times = lambda _, names: dict(zip(names, (0.1, 0.2, 0.3, 0.4), strict=False))  # noqa: E731
    monkeypatch.setattr(tune, "measure", times)
    monkeypatch.setattr(flex, "missing_tool", lambda device: "a compiler")


@pytest.fixture
def bench(build) -> Callable[..., AttentionBench]:
    """bench("model=…", shapes=…): the measurement of a config, TINY unless it is said otherwise."""
    return lambda *overrides, **keys: build("trainer=cpu", *overrides, **(TINY | keys))


def rows_of(bench: AttentionBench) -> list[Row]:
    empty = dict.fromkeys((*bench.columns, "rounds", "kernels", "matmul_gflops_per_s"))
    return [empty | row for cell in bench.cells() for row in bench.measure(cell)]


def reasons(rows: Sequence[Row]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row["backend"], set()).add(row["refused"])
    return found


def test_each_combination_has_a_row_a_backend_and_pass_with_the_same_columns(bench):
    measurement = bench(
        shapes=[[2, 2, 15, 8], [1, 2, [3, 4], 6]],
        masks=["none", "mask"],
        dtypes=["float32", "bfloat16"],
    )
    assert len(measurement.cells()) == len({*measurement.cells()}) == 8
    rows = rows_of(measurement)
    assert len(rows) == 8 * 2 * len(backends.names())
    assert all({*measurement.keys, "refused"} <= {*row} for row in rows)
    assert len({tuple(row[key] for key in measurement.keys) for row in rows}) == len(rows)
    for row in rows:
        figures = [row["time_ms"], row["gflops_per_s"], row["max_error"], row["kernels"]]
        if row["refused"]:
            assert figures == [None] * 4
        else:
            assert row["time_ms_p10"] <= row["time_ms"] <= row["time_ms_p90"]
            assert (row["rounds"], row["peak_mib"]) == (3, 1.5)
            assert 0 < row["relative_error"] < 1e-2
            share = row["gflops_per_s"] / row["matmul_gflops_per_s"]
            assert row["matmul_percent"] == pytest.approx(100 * share)
            assert (row["baseline"] == row["backend"]) is (
                "verdict" not in row or row["verdict"] is None
            )


def test_the_fastest_stands_first_and_auto_takes_one_of_each_pass(bench):
    rows = rows_of(bench(backends=["reference", "eager", "sdpa_flash"]))
    for name in BOTH:
        one = [row for row in rows if row["pass"] == name]
        assert [row["time_ms"] for row in one] == sorted(row["time_ms"] for row in one)
        assert [row["backend"] for row in one if row["auto"]] == ["eager"]


@pytest.mark.parametrize("pattern", [Full(), Window((2, 2))], ids=str)
def test_a_learned_bias_is_a_kind_of_mask_and_its_gradient_is_asked_for(bench, pattern):
    measurement = bench(shapes=[[2, 2, [4, 4], 8]], masks=["bias"], patterns=[pattern])
    rows = {(row["backend"], row["pass"]): row["refused"] for row in rows_of(measurement)}
    assert rows["eager", "forward+backward"] == rows["sdpa_flash", "forward"] == ""
    assert rows["sdpa_flash", "forward+backward"] == "cannot give the gradient of a bias"
    forward = AttentionCall(
        **read_shape([2, 2, [4, 4], 8]), dtype=torch.float32, masks=frozenset(), bias=True,
        pattern=pattern, device="cpu",
    )  # fmt: skip
    gradients = forward.function(Eager(), forward.sample())()
    assert gradients["bias"].abs().sum() > 0


def test_what_a_backend_cannot_is_its_reason(bench):
    rows = rows_of(bench())
    said = reasons(rows)
    assert said["sdpa_cudnn"] == {"cannot run on cpu"}
    assert said["eager"] == {""}
    assert {row["pass"]: row["refused"] for row in rows if row["backend"] == "flex"} == {
        "forward": "cannot be compiled without a compiler",
        "forward+backward": "cannot compute gradients or be compiled without a compiler",
    }


class Witness:
    """Counts the calls of a backend by number of samples: the gate has three."""

    def __init__(self, monkeypatch, backend: type, answer=lambda out: out):
        self.samples: list[int] = []
        right = backend.__call__

        def call(one, q, k, v, **given):
            self.samples.append(len(q))
            return answer(right(one, q, k, v, **given))

        monkeypatch.setattr(backend, "__call__", call)


GATE = r"^fails the gate: (out|dq|dk|dv) is \S+ from float64 and 1\.\de-05 is allowed$"


@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_nothing_is_timed_that_failed_its_gate(bench, monkeypatch, factor):
    witness = Witness(monkeypatch, Eager, lambda out: factor * out)
    said = reasons(rows_of(bench(backends=["eager", "sdpa_flash"])))
    assert all(re.match(GATE, reason) for reason in said["eager"])
    assert said["sdpa_flash"] == {""}
    assert set(witness.samples) == {3}, "it was called by the gate alone"


def test_a_gradient_that_is_wrong_costs_the_pass_that_has_it(bench, monkeypatch):
    Witness(monkeypatch, Eager, lambda out: out.detach() + 0 * out if out.requires_grad else out)
    rows = rows_of(bench(backends=["eager"]))
    assert [row["refused"].partition(" is ")[0] for row in rows] == ["", "fails the gate: dq"]


def test_a_backend_that_other_kernels_computed_is_not_timed(bench, monkeypatch):
    promise = backends.Kernels(required=frozenset({"aten::flash_of_lightning"}))
    monkeypatch.setattr(Eager, "kernels", lambda *_, **__: promise)
    said = reasons(rows_of(bench(backends=["eager", "sdpa_flash"])))
    assert said["eager"] == {"backend=eager promises aten::flash_of_lightning, which did not run"}
    assert said["sdpa_flash"] == {""}


@pytest.mark.parametrize("error", [MemoryError("too much"), RuntimeError("a kernel's\ntraceback")])
def test_what_a_backend_dies_of_is_its_reason_and_others_go_on(bench, monkeypatch, error):
    def peak(*told, device):
        assert device == "cpu"
        if "eager" in told:
            raise error
        return 1.5

    monkeypatch.setattr(attention_bench, "peak_mib", peak)
    said = reasons(rows_of(bench(backends=["eager", "sdpa_flash"])))
    assert said == {"eager": {str(error).splitlines()[0]}, "sdpa_flash": {""}}


class FakeDevice:
    """A clock that only work moves; work is queued at no time, and done when the clock is read."""

    def __init__(self):
        self.now, self.queued = 0.0, 0.0

    def read(self, device: str) -> float:
        self.now, self.queued = self.now + self.queued, 0.0
        return self.now


def test_a_time_is_that_of_all_work_which_a_call_queued_on_its_device(bench, monkeypatch):
    device = FakeDevice()
    order = []

    def slow(name: str, seconds: float):
        def answer(out):
            order.append(name)
            device.queued += seconds
            return out

        return answer

    Witness(monkeypatch, Eager, slow("eager", 0.25))
    Witness(monkeypatch, SdpaFlash, slow("flash", 0.5))
    rows = rows_of(bench(backends=["eager", "sdpa_flash"], clock=device.read, rounds=5))
    assert [(row["backend"], row["time_ms"], row["time_ms_p90"]) for row in rows] == [
        ("eager", 250.0, 250.0), ("sdpa_flash", 500.0, 500.0),
    ] * 2  # fmt: skip
    assert order[-12:] == ["eager", "flash"] * 6, "one round to warm up and five that count"
    operations = 4 * 8 * 15**2 * 2 * 2
    assert [row["gflops_per_s"] for row in rows[::2]] == [
        pytest.approx(factor * operations / 0.25 / 1e9, rel=1e-3) for factor in (1, 3)
    ]


def test_a_cell_ends_when_its_time_is_up_but_has_three_rounds(bench, monkeypatch):
    device = FakeDevice()

    def slow(out):
        device.queued += 5.0
        return out

    Witness(monkeypatch, Eager, slow)
    rows = rows_of(bench(backends=["eager"], clock=device.read, rounds=9, seconds=4.0))
    assert [row["rounds"] for row in rows] == [3, 3]


def call_of(pattern, grid: Grid, masks: frozenset[str] = frozenset(), **changes) -> AttentionCall:
    given = {"batch": 2, "heads": 3, "width": 8, "dtype": torch.float32, "device": "cpu"} | changes
    return AttentionCall(grid=grid, masks=masks, pattern=pattern, **given)


PATTERNS = [
    Full(), Window(3), Window((2, 4), shift=1), Axial("rows"), Axial("both"), Raster(),
    Neighborhood(3, dilation=2),
]  # fmt: skip


@pytest.mark.parametrize(
    "masks", [frozenset(), frozenset({"padding"}), frozenset({"mask"})], ids=sorted
)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_a_pattern_computes_what_its_rule_as_a_mask_does(pattern, masks):
    call = call_of(pattern, Grid(5, 7, 1), masks)
    sample = call.sample()
    leaves = list(sample.learned().values())
    mask = replace(sample.mask, pattern=GridPattern(pattern, call.grid))
    out = attend(sample.q, sample.k, sample.v, mask=mask, backend="reference")
    gradients = torch.autograd.grad(out, leaves, sample.grad)
    ours = call.function(backends.load("eager"), sample)()
    torch.testing.assert_close([*ours.values()], [*gradients], atol=1e-5, rtol=0)
    once = replace(call, backward=False)
    torch.testing.assert_close(once.function(backends.load("eager"), once.sample())(), out.detach())


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_what_is_asked_of_backends_is_known_before_they_are_called(pattern, backward):
    call = call_of(pattern, Grid(5, 7, 1), frozenset({"padding"}), backward=backward)
    recorder = Recorder()
    with torch.set_grad_enabled(backward):
        replace(call, backward=False).function(recorder, call.sample())()
    assert set(call.requests) == set(recorder.requests)
    assert call.requests[0].queries * call.requests[0].batch >= 2 * 35


def test_operations_are_those_of_the_pairs_that_a_pattern_lets_see():
    full = call_of(Full(), Grid(4, 6), backward=False)
    assert full.operations == 4 * 8 * 24**2 * 2 * 3
    assert replace(full, backward=True).operations == 3 * full.operations
    assert replace(full, masks=frozenset({"mask"})).operations == full.operations
    rows = call_of(Axial("rows"), Grid(4, 6), backward=False)
    assert rows.operations * 4 == full.operations


def test_the_shape_may_be_the_one_that_a_model_has_on_its_data(bench):
    overrides = ("model=vit_tiny", "model.patch_size=4", "data=cifar10", "data.batch_size=5")
    measurement = bench(*overrides, shapes=None)
    (cell,) = measurement.cells()
    assert cell == "(5, 3, 65, 64) on 8 x 8 + 1, float32, mask none, Full()"
    with pytest.raises(ValueError, match=r"takes a vit model.s shape, got VisionTransformer"):
        bench("model=timm", "data=imagenette", shapes=None)


def test_patterns_are_choices_of_the_group_or_the_config_s_own(bench):
    named = bench(shapes=[[1, 1, [8, 12], 4]], patterns=["full", "swin", Axial("cols")])
    assert [cell.rpartition("none, ")[2] for cell in named.cells()] == [
        "Full()", "Window(size=(4, 4), shift=(0, 0))", "Window(size=(4, 4), shift=(2, 2))",
        "Axial(axis='cols')",
    ]  # fmt: skip
    own = bench("pattern=window", "pattern.size=3", shapes=[[1, 1, [8, 12], 4]])
    assert [cell.rpartition("none, ")[2] for cell in own.cells()] == [
        "Window(size=(3, 3), shift=(0, 0))"
    ]


@pytest.mark.parametrize(
    "shape, tokens, written",
    [
        ([2, 3, 15, 8], 15, "(2, 3, 15, 8)"),
        ([2, 3, [4, 6], 8], 24, "(2, 3, 24, 8) on 4 x 6"),
        ([2, 3, [4, 6, 5], 8], 29, "(2, 3, 29, 8) on 4 x 6 + 5"),
    ],
)
def test_a_shape_has_a_number_of_tokens_or_a_map(shape, tokens, written):
    call = call_of(Full(), **read_shape(shape))
    assert (call.grid.tokens, call.shape) == (tokens, written)


@pytest.mark.parametrize(
    "shape", [[2, 2, 16], [2, 2, 0, 8], [2, 2, [4], 8], [2, 2, [4, 0], 8], [2, 2, "16", 8], 16]
)
def test_anything_else_is_no_shape(shape):
    with pytest.raises(ValueError, match=r"takes \[batch, heads, tokens, head width\]"):
        read_shape(shape)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"shapes": []}, r"bench.shapes=\[\] leaves nothing to measure"),
        ({"backends": []}, r"bench.backends=\[\] leaves nothing to measure"),
        (
            {"dtypes": ["float31"]},
            "bench.dtypes takes float32, .*float64, got float31",
        ),
        ({"masks": ["dense"]}, "bench.masks takes none, padding, mask, bias, got dense"),
        ({"baseline": "eagre"}, "backend=eagre does not exist; did you mean eager"),
        ({"backends": ["flex2"]}, "backend=flex2 does not exist; did you mean flex"),
        ({"rounds": 2}, "bench.rounds must be >= 3, got 2"),
        ({"seconds": -1}, "bench.seconds must be > 0, got -1"),
        ({"patterns": ["window"]}, r"Window\(.*\) needs a map, and bench.shapes has 15 tokens"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is(bench, changes, message):
    with pytest.raises(ValueError, match=message):
        bench(**changes)


def test_compiled_backends_say_what_compiling_took(bench, monkeypatch):
    # A compiler that compiles nothing is enough to see that calls go through it.
    real = torch.compile
    plain = lambda function, **knobs: real(function, backend="eager", **knobs)  # noqa: E731
    monkeypatch.setattr(torch, "compile", plain)
    measurement = bench("compile=true", backends=["eager", "sdpa_flash"])
    rows = rows_of(measurement)
    assert reasons(rows) == {"eager": {""}, "sdpa_flash": {""}}
    assert all(row["compiled"] and row["first_call_s"] > 0 for row in rows)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells a peak")
def test_a_call_written_out_takes_memory_for_its_scores_and_flash_does_not():
    call = AttentionCall(
        **read_shape([1, 4, 1024, 8]), dtype=torch.float32, masks=frozenset(), pattern=Full(),
        device="cpu", backward=False,
    )  # fmt: skip
    scores = 4 * 1024**2 * 4 / 2**20  # MiB
    peaks = {
        name: peak_mib(function_of, call, name, False, device="cpu")
        for name in ("eager", "sdpa_flash")
    }
    assert peaks["eager"] > scores - RESOLUTION_MIB
    assert peaks["sdpa_flash"] < scores / 2
    training = replace(call, backward=True)
    assert peak_mib(function_of, training, "eager", False, device="cpu") > 2 * scores - 1


def made_up_row(backend: str, tokens: int, ms: float, mib: float, **changes) -> Row:
    words = {
        "backend": backend, "dtype": "float32", "tokens": tokens, "pass": "forward", "batch": 1,
        "heads": 2, "width": 64, "mask": "none", "pattern": "Full()", "compiled": False,
        "device": "cpu",
    }  # fmt: skip
    return words | {"time_ms": ms, "peak_mib": mib, "refused": ""} | changes


def test_growth_is_the_exponent_over_tokens_of_what_a_process_can_count(bench):
    sizes = (64, 128, 256, 512)
    rows = [made_up_row("eager", n, n**2 / 1e3, n**2 / 1e4) for n in sizes]
    rows += [made_up_row("sdpa", n, n / 1e3, None) for n in sizes]
    tables, (time, peak) = bench().summary(table_of(rows))
    [growth] = tables.values()
    assert growth["backend, dtype"].tolist() == ["eager, float32", "sdpa, float32"]
    assert growth["time_exponent"].tolist() == pytest.approx([2.0, 1.0])
    assert growth["peak_exponent"].isna().tolist() == [False, True]
    assert (time.name, time.log) == ("time of forward, (1, 2, N, 64), mask none, Full()", True)
    assert peak.points()["x"].tolist() == [128, 256, 512], "below a MiB a count tells nothing"
    assert not bench().summary(table_of(rows[:1]))[1], "one length is no line"
