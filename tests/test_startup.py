"""Memory that a step frees stays with the process for the next step."""

import resource
import subprocess
import sys

import pytest

TOUCHED = """
import ctypes, resource, torch
from vitrail.startup import keep_freed_memory
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # no huge pages, which are few
{call}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)  # 64 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(min([faults() for _ in range(16)][1:]))  # small things may begin on what was freed
"""
PAGES = 2**26 // resource.getpagesize()


def faults(call):
    """How many pages of a tensor of 64 MiB, freed and made again, the system has to bring."""
    script = TOUCHED.format(call=call)
    return int(subprocess.check_output([sys.executable, "-c", script], text=True))


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_a_large_tensor_lies_where_the_one_freed_before_it_lay():
    assert faults("keep_freed_memory()") < 0.01 * PAGES < 0.5 * PAGES < faults("")


def test_another_c_library_is_left_alone(monkeypatch):
    from vitrail import startup

    monkeypatch.setattr(startup.platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(startup.ctypes, "CDLL", lambda _: pytest.fail("it was asked"))
    startup.keep_freed_memory()
