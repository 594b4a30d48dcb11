"""The peak is what a function takes itself, once it is warm; what cannot be had has a reason."""

import signal
from functools import partial
from textwrap import dedent

import pytest
import torch

from vitrail.bench import memory
from vitrail.bench.memory import RESOLUTION_MIB, peak_mib

pytestmark = pytest.mark.skipif(
    not (memory.PROC / "clear_refs").exists(), reason="only Linux tells a process's peak"
)
MIB_OF_FLOATS = 2**18


def test_a_tensor_is_counted_and_a_larger_one_in_proportion():
    small, large = (peak_mib(partial, torch.ones, n * MIB_OF_FLOATS, device="cpu") for n in (8, 40))
    assert small == pytest.approx(8, abs=RESOLUTION_MIB)
    assert large == pytest.approx(40, abs=RESOLUTION_MIB)


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


def test_inputs_and_what_the_first_call_sets_up_are_not_counted(once):
    assert peak_mib(once, 32, device="cpu") < RESOLUTION_MIB


def test_an_error_of_the_function_is_raised_here_in_one_line():
    with pytest.raises(RuntimeError, match=r"^inconsistent tensor size") as error:
        peak_mib(partial, torch.dot, torch.ones(2), torch.ones(3), device="cpu")
    assert "\n" not in str(error.value)


def test_a_process_that_the_system_ends_took_too_much():
    with pytest.raises(MemoryError, match="more memory than this machine has free"):
        peak_mib(partial, signal.raise_signal, signal.SIGKILL, device="cpu")
    with pytest.raises(RuntimeError, match="ended with -6"):
        peak_mib(partial, signal.raise_signal, signal.SIGABRT, device="cpu")


def test_where_nothing_tells_there_is_no_figure(monkeypatch, tmp_path):
    assert peak_mib(partial, torch.ones, 4, device="mps") is None
    monkeypatch.setattr(memory, "PROC", tmp_path)
    assert peak_mib(partial, torch.ones, 4, device="cpu") is None


@pytest.mark.gpu
def test_on_a_gpu_torch_counts():
    on_gpu = partial(partial, device="cuda")
    assert peak_mib(on_gpu, torch.ones, 8 * MIB_OF_FLOATS, device="cuda") == pytest.approx(8)
    with pytest.raises(MemoryError, match="more memory than this GPU has free"):
        peak_mib(on_gpu, torch.ones, 2**45, device="cuda")
