"""One backend on one call, before it is timed: whether it may be, and what is known of it."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.compiler.config

from vitrail.attention import backends
from vitrail.attention.backends import Backend, Refused, Request
from vitrail.attention.selection.gate import Exact, FailedGate, GateResult, measure_error
from vitrail.attention.selection.sample import Sample
from vitrail.bench.attention_call import AttentionCall, function_of
from vitrail.bench.compiled import Compiled
from vitrail.bench.memory import peak_mib
from vitrail.tracking.kernel_watch import ATTENTION, broken_promises, quiet_profile

COMPILED = "Torch-Compiled Region"  # how the profiler's name of what torch compiled begins


@dataclass(frozen=True)
class Member:
    """A backend that may be timed.

    function: one call. first_s: what the first one took. compiles: whether something in it was
    compiled. peak_mib: see `memory.peak_mib`. distance: from float64, in each measure that of the
    worst tensor. kernels: those of attention, and what torch compiled, as the profiler saw them.
    """

    function: Callable[[], object]
    first_s: float
    compiles: bool
    peak_mib: float | None
    distance: tuple[float, float]
    kernels: tuple[str, ...]


def admit(
    name: str,
    call: AttentionCall,
    sample: Sample,
    trial: Callable[[Request], Exact],
    *,
    compiled: bool,
    read: Callable[[str], float],
) -> Member:
    """The backend of that name, found able and proved.

    trial: makes the trial of a request; backends share them. compiled: inside a graph of
    torch.compile. read: the clock. Raises Refused, FailedGate, MemoryError, or a RuntimeError of
    the kernel: the reason why there is nothing to time.
    """
    for request in call.requests:
        if lacks := backends.lacks(name, request):
            raise Refused(f"cannot {' or '.join(lacks)}")
    backend = Compiled(backends.load(name)) if compiled else backends.load(name)
    # Memory comes first: on a CPU it is found in another process, which is what dies of too much.
    peak = peak_mib(function_of, call, name, compiled, device=call.device)
    distance = _proved(call, backend, trial)
    function = call.function(backend, sample)
    start = read(call.device)
    with _forgetting():
        function()
    first = read(call.device) - start
    seen = _seen(function, call.device)
    for request in call.requests:
        promise = backend.kernels(request, compiled=compiled)
        if broken := broken_promises({name: promise}, seen):
            raise Refused("; ".join(broken))
    return Member(
        function,
        first,
        any(each.startswith(COMPILED) for each in seen),
        peak,
        distance,
        tuple(sorted(each for each in seen if each.startswith(COMPILED) or ATTENTION.search(each))),
    )


def _proved(
    call: AttentionCall, backend: Backend, trial: Callable[[Request], Exact]
) -> tuple[float, float]:
    results: list[GateResult] = []
    for request in call.requests:
        result = measure_error(backend, trial(request))
        if not result.passed:
            raise FailedGate(f"fails the gate: {result}")
        results.append(result)
    return (
        max(value for result in results for value in result.largest.values()),
        max(value for result in results for value in result.relative.values()),
    )


@contextmanager
def _forgetting() -> Iterator[None]:
    """In it, what was compiled before, in this process or in another, makes nothing shorter."""
    with warnings.catch_warnings(), torch.compiler.config.patch(force_disable_caches=True):
        warnings.filterwarnings("ignore", "dynamo_pgo force disabled", UserWarning)
        yield


def _seen(function: Callable[[], object], device: str) -> set[str]:
    """Names of everything that the profiler sees in one call."""
    with quiet_profile(device) as profiled:
        function()
        if device != "cpu":
            torch.accelerator.synchronize()
    return {event.name for event in profiled.function_events}
