"""The most memory that a function takes, counted by torch on CUDA and by the system on a CPU."""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from hydra.core.utils import env_override

from vitrail.startup import M_MMAP_THRESHOLD

MIB = 2**20
RESOLUTION_MIB = 1.0  # what is less on a CPU is about as much as its count strays by
PROC = Path("/proc/self")
LARGE = 2**16  # bytes; what is larger is mapped by itself

Build = Callable[..., Callable[[], object]]


def peak_mib(build: Build, *arguments: object, device: str) -> float | None:
    """MiB that the function `build(*arguments)` takes beyond what is there before it is called.

    It is called twice and the second call counts, so that what is made once, such as compiled code,
    does not. What `build` makes is there before; what the function returns counts.

    On CUDA this is torch's count, in this process. On a CPU it is the resident set of a process of
    its own: there `build` is sent by its name, and its arguments must pickle. None where it cannot
    be told: on other devices, and on systems without Linux's /proc. Raises MemoryError where there
    is not enough, and RuntimeError with what the function itself raised.
    """
    if device == "cuda":
        return _counted(build(*arguments))
    if device == "cpu" and (PROC / "clear_refs").exists():
        return _in_a_process(build, arguments)
    return None


def _counted(function: Callable[[], object]) -> float:
    try:
        function()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError as error:
        raise MemoryError("it takes more memory than this GPU has free") from error
    return (torch.cuda.max_memory_allocated() - before) / MIB


def _in_a_process(build: Build, arguments: tuple[object, ...]) -> float:
    # A server that has imported torch and never computed: a fork of it begins at once, with threads
    # that work, and its resident set is its own. A fork of this process would have neither.
    context = multiprocessing.get_context("forkserver")
    # Each fork imports the command's own file once more, and Hydra is what takes long in that.
    context.set_forkserver_preload([__name__, build.__module__, "hydra", "omegaconf"])
    here, there = context.Pipe(duplex=False)
    process = context.Process(
        target=_measure, args=(there, torch.get_num_threads(), build, arguments), daemon=True
    )
    # Before Python 3.14 the server was not told where modules are, and imported none of them.
    with env_override({"PYTHONPATH": os.pathsep.join(sys.path)}):
        process.start()
    there.close()
    try:
        peak, said = here.recv()
    except EOFError:
        peak, said = None, None
    process.join()
    here.close()
    if said is not None:
        raise RuntimeError(said)
    if peak is None:
        if process.exitcode == -signal.SIGKILL:
            raise MemoryError("it takes more memory than this machine has free")
        raise RuntimeError(f"the process in which it was called ended with {process.exitcode}")
    return peak


def _measure(pipe: Connection, threads: int, build: Build, arguments: tuple[object, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    with suppress(OSError):  # if anything must go for want of memory, this is the first
        (PROC / "oom_score_adj").write_text("1000")
    torch.set_num_threads(threads)
    libc = ctypes.CDLL(None)
    tuned = hasattr(libc, "mallopt")
    if tuned:  # then a tensor that is freed leaves the resident set at once
        libc.mallopt(M_MMAP_THRESHOLD, LARGE)
    try:
        function = build(*arguments)
        function()
        if tuned:
            libc.malloc_trim(0)
        (PROC / "clear_refs").write_text("5")  # VmHWM begins anew, proc(5)
        before = _status("VmRSS")
        function()
    except (RuntimeError, MemoryError) as error:
        pipe.send((None, str(error).partition("\n")[0]))
    else:
        pipe.send(((_status("VmHWM") - before) / 1024, None))


def _status(name: str) -> int:
    """A figure of this process in KiB."""
    lines = (PROC / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
