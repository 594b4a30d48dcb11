"""What a device tells of a call: its peak memory, and the speed of the device's matrix product."""

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from hydra.core.utils import env_override

from vitrail.attention.selection.stopwatch import interleave
from vitrail.startup import M_MMAP_THRESHOLD

MIB = 2**20
RESOLUTION_MIB = 1.0  # a CPU's count strays by about as much
PROC = Path("/proc/self")
MAPPED_ALONE = 2**16  # bytes; larger tensors leave the resident set as soon as they are freed
SIDES = {"cpu": 1024, "cuda": 8192}  # of square matrices that keep the device busy
ROUNDS, SECONDS = 20, 0.5

Build = Callable[..., Callable[[], object]]


@cache
def matmul_peak(dtype: torch.dtype, device: str) -> tuple[float, str]:
    """Floating-point operations a second of the device's matrix product, and the product's dtype.

    The fastest of several products, measured once a process; a multiply-add counts as two. For
    halves it is the faster of their own product and float32's: a CPU without units for halves
    computes attention in float32, and torch's product of halves is slow there.
    """
    halves = dtype in (torch.bfloat16, torch.float16)
    dtypes = (dtype, torch.float32) if halves else (dtype,)
    side = SIDES.get(device, 1024)
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn(side, side, generator=generator) for _ in range(2))
    products = {}
    for kind in dtypes:
        pair = one.to(device, kind), other.to(device, kind)
        products[str(kind).removeprefix("torch.")] = lambda pair=pair: pair[0] @ pair[1]
    times = interleave(products, device=device, rounds=ROUNDS, seconds=SECONDS)
    fastest = min(times, key=lambda name: min(times[name].seconds))
    return 2 * side**3 / min(times[fastest].seconds), fastest


def peak_mib(build: Build, *arguments: object, device: str) -> float | None:
    """MiB that the function `build(*arguments)` takes beyond what is there before it is called.

    The function is called twice and the second call counts, so that what is made once, such as
    compiled code, does not. What `build` makes is there before; what the function returns counts.

    Args:
        build: makes the function. On a CPU it runs in a process of its own, whose resident set is
            read; there `build` is sent by its name.
        arguments: of `build`; on a CPU they must pickle.
        device: torch's device type. On `cuda` torch counts, in this process.

    Returns:
        None on other devices, and on systems without Linux's /proc.

    Raises:
        MemoryError: there is too little memory.
        RuntimeError: the function's own, as its first line.
    """
    if device == "cuda":
        return _cuda_peak(build(*arguments))
    if device == "cpu" and (PROC / "clear_refs").exists():
        return _cpu_peak(build, arguments)
    return None


def reset_peak() -> None:
    """Let the peak resident set of this process begin anew, where the system can, see proc(5)."""
    with suppress(OSError):
        (PROC / "clear_refs").write_text("5")


def _cuda_peak(function: Callable[[], object]) -> float:
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


def _cpu_peak(build: Build, arguments: tuple[object, ...]) -> float:
    # A server that has imported torch and never computed: its forks start at once, and have
    # threads that work and a resident set of their own. A fork of this process has neither.
    context = multiprocessing.get_context("forkserver")
    # Each fork imports the command's own file once more, and Hydra is what takes long in that.
    context.set_forkserver_preload([__name__, build.__module__, "hydra", "omegaconf"])
    here, there = context.Pipe(duplex=False)
    # As bytes: as arguments, tensors would be moved into shared memory, of which containers have
    # little.
    call = pickle.dumps((build, arguments))
    process = context.Process(
        target=_measure, args=(there, torch.get_num_threads(), call), daemon=True
    )
    # Before Python 3.14 the server is not told where modules are, and imports none of them.
    with env_override({"PYTHONPATH": os.pathsep.join(sys.path)}):
        process.start()
    there.close()
    try:
        peak, error = here.recv()
    except EOFError:
        peak, error = None, None
    process.join()
    here.close()
    if error is not None:
        raise RuntimeError(error)
    if process.exitcode == -signal.SIGKILL:
        raise MemoryError("it takes more memory than this machine has free")
    if peak is None:
        raise RuntimeError(f"the process in which it was called ended with {process.exitcode}")
    return peak


def _measure(pipe: Connection, threads: int, call: bytes) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    with suppress(OSError):  # the first to be ended where memory is short
        (PROC / "oom_score_adj").write_text("1000")
    torch.set_num_threads(threads)
    libc = ctypes.CDLL(None)
    tuned = hasattr(libc, "mallopt")
    if tuned:
        libc.mallopt(M_MMAP_THRESHOLD, MAPPED_ALONE)
    try:
        build, arguments = pickle.loads(call)
        function = build(*arguments)
        function()
        if tuned:
            libc.malloc_trim(0)
        reset_peak()
        before = _status_kib("VmRSS")
        function()
    except (RuntimeError, MemoryError) as error:
        pipe.send((None, str(error).partition("\n")[0]))
    else:
        pipe.send(((_status_kib("VmHWM") - before) / 1024, None))


def _status_kib(name: str) -> int:
    lines = (PROC / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
