"""Peak memory of a call, and the matrix product: what is counted, and what cannot be had."""

import signal
from functools import partial
from textwrap import dedent

import pytest
import torch

from vitrail.attention.selection.stopwatch import Times
from vitrail.bench import device
from vitrail.bench.device import RESOLUTION_MIB, matmul_peak, peak_mib

LINUX = pytest.mark.skipif(
    not (device.PROC / "clear_refs").exists(), reason="only Linux tells a process's peak"
)
MIB_OF_FLOATS = 2**18


@LINUX
def test_a_tensor_is_counted_and_a_larger_one_in_proportion():
    small, large = (peak_mib(partial, torch.ones, n * MIB_OF_FLOATS, device="cpu") for n in (8, 40))
    assert small == pytest.approx(8, abs=RESOLUTION_MIB)
    assert large == pytest.approx(40, abs=RESOLUTION_MIB)


@LINUX
def test_what_is_freed_on_the_way_counts_once_and_not_twice():
    softmax = partial(torch.nn.functional.softmax, dim=-1)  # makes one tensor and keeps no other
    chain = torch.nn.Sequential(*(torch.nn.Softmax(-1) for _ in range(6)))
    x = torch.zeros(8, MIB_OF_FLOATS)
    assert peak_mib(partial, softmax, x, device="cpu") == pytest.approx(8, abs=RESOLUTION_MIB)
    assert peak_mib(partial, chain, x, device="cpu") == pytest.approx(16, abs=RESOLUTION_MIB)


@pytest.fixture
def once(tmp_path, monkeypatch):
    """A function in a file of its own, which takes 64 MiB in its first call and none after it."""
    (tmp_path / "called_once.py").write_text(
        dedent("""
            import torch
            KEPT = []
            def build(inputs):
                there = torch.ones(inputs, 2**18)
                return lambda: KEPT or KEPT.append(torch.ones(64, 2**18))
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    import called_once

    return called_once.build


@LINUX
def test_inputs_and_what_the_first_call_sets_up_are_not_counted(once):
    assert peak_mib(once, 32, device="cpu") < RESOLUTION_MIB


@LINUX
def test_an_error_of_the_function_is_raised_here_in_one_line():
    with pytest.raises(RuntimeError, match=r"^inconsistent tensor size") as error:
        peak_mib(partial, torch.dot, torch.ones(2), torch.ones(3), device="cpu")
    assert "\n" not in str(error.value)


@LINUX
def test_a_process_that_the_system_ends_took_too_much():
    with pytest.raises(MemoryError, match="more memory than this machine has free"):
        peak_mib(partial, signal.raise_signal, signal.SIGKILL, device="cpu")
    with pytest.raises(RuntimeError, match="ended with -6"):
        peak_mib(partial, signal.raise_signal, signal.SIGABRT, device="cpu")


def test_where_nothing_tells_there_is_no_figure(monkeypatch, tmp_path):
    assert peak_mib(partial, torch.ones, 4, device="mps") is None
    monkeypatch.setattr(device, "PROC", tmp_path)
    assert peak_mib(partial, torch.ones, 4, device="cpu") is None


@pytest.mark.gpu
def test_on_a_gpu_torch_counts():
    on_gpu = partial(partial, device="cuda")
    assert peak_mib(on_gpu, torch.ones, 8 * MIB_OF_FLOATS, device="cuda") == pytest.approx(8)
    with pytest.raises(MemoryError, match="more memory than this GPU has free"):
        peak_mib(on_gpu, torch.ones, 2**45, device="cuda")


@pytest.fixture
def products(monkeypatch):
    """Products whose seconds are told by dtype; the names of those that were timed."""
    seen = []

    def timed(functions, **_):
        seen.extend(functions)
        return {name: Times((SECONDS[name], 2 * SECONDS[name])) for name in functions}

    monkeypatch.setattr(device, "interleave", timed)
    monkeypatch.setitem(device.SIDES, "cpu", 8)
    matmul_peak.cache_clear()
    yield seen
    matmul_peak.cache_clear()


SECONDS = {"float32": 0.25, "bfloat16": 4.0, "float16": 0.125, "float64": 0.5}


@pytest.mark.parametrize(
    "dtype, peak, of",
    [
        (torch.float64, 2 * 8**3 / 0.5, "float64"),
        (torch.bfloat16, 2 * 8**3 / 0.25, "float32"),
        (torch.float16, 2 * 8**3 / 0.125, "float16"),
    ],
    ids=str,
)
def test_halves_are_held_against_the_fastest_product_that_computes_them(products, dtype, peak, of):
    assert matmul_peak(dtype, "cpu") == (peak, of)
    assert matmul_peak(dtype, "cpu") == (peak, of)
    assert len(products) == len({*products}), "measured once"


@pytest.mark.gpu
def test_a_gpu_has_its_own_product():
    peak, of = matmul_peak(torch.bfloat16, "cuda")
    assert peak > 1e12
    assert of == "bfloat16"
