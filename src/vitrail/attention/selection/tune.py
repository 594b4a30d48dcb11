"""Measure the backends that may serve a request, and remember which is the fastest.

Times are of forward and backward together, as a training step needs them (of forward alone where a
request has no gradients), at the request's own shapes.
"""

import hashlib
import json
import math
import os
import platform
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import vitrail
from vitrail.attention import backends
from vitrail.attention.backends import Backend, Request
from vitrail.attention.selection.sample import Sample
from vitrail.attention.selection.stopwatch import interleave

SECONDS = 0.2, 0.8  # of finding out who is worth a second look, and of that look
ROUNDS = 5, 31
HOPELESS = 2.0  # times the fastest of the first look
MOST_WORK = 4 * 10**9  # multiplications in q k^T of what is timed
SCORES_LIMIT = 2**30  # bytes of one call's scores, which written-out attention keeps for backward


@dataclass(frozen=True)
class Choice:
    """The fastest backend for a request.

    times: median seconds of each that was measured, the fastest first. rejected: the reason against
    each other one, by name. remembered: from an earlier measurement on this machine.
    """

    name: str
    times: Mapping[str, float]
    rejected: Mapping[str, str]
    remembered: bool

    def why(self) -> str:
        """`7.9 ms, sdpa_flash 53 ms`."""
        if not self.times:
            return "the only one that can"
        mine, *others = self.times.items()
        line = ", ".join([_short(mine[1]), *(f"{name} {_short(time)}" for name, time in others)])
        return line + " (remembered)" * self.remembered


def choose(
    request: Request,
    *,
    deterministic: bool = False,
    without: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Choice:
    """The fastest permitted backend, by measuring now or by what was measured before.

    Args:
        deterministic: only backends that give equal gradients on every run.
        without: backends that are out of the question, with the reason.
        folder: where times are kept, None for `cache_folder()`.

    Raises:
        Refused: no backend is left.
    """
    able, rejected = candidates(request, deterministic=deterministic, without=without)
    if not able:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in rejected.items())
        raise backends.Refused(f"backend=auto finds no backend for this call; {reasons}")
    store = (folder or cache_folder()) / f"{_digest(request, able)}.json"
    times = _recall(store, able)
    remembered = times is not None
    if times is None and len(able) == 1:
        return Choice(able[0], {}, rejected, remembered=False)
    if times is None:
        times = measure(request, able)
        _keep(store, times, request)
    fastest, *slower = times
    slower = {name: f"slower: {_short(times[name])}" for name in slower}
    return Choice(fastest, times, slower | rejected, remembered)


def candidates(
    request: Request, *, deterministic: bool = False, without: Mapping[str, str] | None = None
) -> tuple[list[str], dict[str, str]]:
    """Names that are worth measuring, and the reason against each other one."""
    reasons = {
        name: (without or {}).get(name) or _against(name, request, deterministic)
        for name in backends.names()
    }
    able = [name for name, reason in reasons.items() if reason is None]
    return able, {name: reason for name, reason in reasons.items() if reason is not None}


def measure(request: Request, names: Collection[str]) -> dict[str, float]:
    """Median seconds of each backend, the fastest first; only near ones are looked at twice."""
    # The first call of a kernel sets it up: on one sample, which costs the least.
    small = Sample.of(replace(request, batch=1))
    for name in names:
        _step(small, backends.load(name))
    # Long sequences cost the same a sample, however many there are.
    work = request.scores // request.batch * request.width
    batch = min(request.batch, max(1, MOST_WORK // work))
    sample = Sample.of(replace(request, batch=batch))
    steps = {name: lambda n=name: _step(sample, backends.load(n)) for name in names}
    times = {}
    worth = steps
    for rounds, seconds in zip(ROUNDS, SECONDS, strict=True):
        found = interleave(worth, device=request.device, rounds=rounds, warm_up=0, seconds=seconds)
        times |= {name: time.median for name, time in found.items()}
        worth = {
            name: steps[name] for name in found if times[name] <= HOPELESS * min(times.values())
        }
    # Those that were looked at twice come first, however lucky another's first look was.
    return dict(sorted(times.items(), key=lambda item: (item[0] not in found, item[1])))


def cache_folder() -> Path:
    """Where times are kept: `auto` in `$VITRAIL_CACHE`, by default in `~/.cache/vitrail`."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("VITRAIL_CACHE") or caches / "vitrail") / "auto"


def _against(name: str, request: Request, deterministic: bool) -> str | None:
    if lacks := backends.lacks(name, request):
        return f"cannot {' or '.join(lacks)}"
    backend = backends.load(name)
    if backend.by_name_only:
        return f"by name only: {backend.by_name_only}"
    if deterministic and request.backward and not backend.capability(request).deterministic:
        return "its gradients differ from run to run"
    scores = request.scores * request.dtype.itemsize
    if backend.keeps_scores and scores > SCORES_LIMIT:
        return f"its scores take {scores / 2**30:.1f} GiB a layer (at most {SCORES_LIMIT >> 30})"
    return None


def _step(sample: Sample, backend: Backend) -> None:
    with torch.set_grad_enabled(bool(sample.learned())):
        out = sample.forward(backend)
    if sample.learned():
        sample.backward(out)


def _digest(request: Request, names: Collection[str]) -> str:
    """A file name for what decides the times."""
    asked = str(replace(request, masks=sorted(request.masks)))  # sets print in any order
    versions = {name: backends.load(name).variant(request) for name in names}
    text = json.dumps([asked, versions, machine(request.device)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _recall(store: Path, names: Collection[str]) -> dict[str, float] | None:
    """Times of exactly these backends, or None where there are none to be read."""
    try:
        times = json.loads(store.read_text())["seconds"]
        sane = set(times) == set(names) and all(0 < time < math.inf for time in times.values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # or no such containers
        return None
    return times if sane else None


def _keep(store: Path, times: Mapping[str, float], request: Request) -> None:
    """Write the times whole or not at all; where the folder is closed to us, go on without."""
    told = {"seconds": times, "request": str(request), "machine": machine(request.device)}
    draft = store.with_suffix(f".{os.getpid()}")
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(told, indent=1))
        draft.replace(store)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def machine(device: str) -> dict[str, str | int | None]:
    """Plain values that tell the machines apart on which times would differ, for a device type."""
    found = {"vitrail": vitrail.__version__, "torch": torch.__version__, "device": device}
    if device == "cuda":
        card = torch.cuda.get_device_properties(torch.cuda.current_device())
        return found | {"name": card.name, "cuda": torch.version.cuda}
    instructions = torch.backends.cpu.get_cpu_capability()
    threads = torch.get_num_threads()
    return found | {"name": cpu_name(), "instructions": instructions, "threads": threads}


def cpu_name() -> str:
    """The processor's model name, as far as this system tells."""
    cpuinfo = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text()) if cpuinfo.exists() else None
    return named[1] if named else platform.processor() or platform.machine()


def _short(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
