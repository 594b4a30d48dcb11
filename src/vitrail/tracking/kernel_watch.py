"""Which kernels computed a training step, seen by the profiler and held against the promises."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor
from torch.autograd.profiler import profile

from vitrail.attention.backends import Kernels
from vitrail.errors import UserError

# Operators and device kernels that attention is made of; a receipt leaves out the rest of a step.
ATTENTION = re.compile(r"attention|(?<!log_)softmax|bmm|flash|fmha|flex|sdpa")


class WrongKernel(UserError):
    """A step was computed by other kernels than the chosen backends promise."""


@dataclass(frozen=True)
class SeenKernels:
    """Attention kernels of one training step, with the number of calls in each direction.

    Recomputed activations count as backward.
    """

    step: int
    forward: Mapping[str, int]
    backward: Mapping[str, int]

    def rows(self) -> list[dict[str, Any]]:
        """One row a kernel and direction, for a table."""
        return [
            {"direction": direction, "kernel": name, "calls": calls}
            for direction, kernels in (("forward", self.forward), ("backward", self.backward))
            for name, calls in kernels.items()
        ]


class KernelWatch(Callback):
    """Profiles one training step, forward and backward, and stops the run when a promise is broken.

    Only the first process watches. It takes tenths of a second and never leaves a profiler open.
    The watched step raises WrongKernel.

    Args:
        promises: of each backend in use, by name, see `broken_promises`.
        record: receives what was seen, before the promises are checked.
        step: which training step of this fit is watched, from 0. Under compile it must not be the
            first: tracing calls every operator that it considers.
    """

    def __init__(
        self, promises: Mapping[str, Kernels], record: Callable[[SeenKernels], None], *, step: int
    ):
        self._promises, self._record, self._step = promises, record, step
        self._steps_to_go: int | None = step  # None when it is over
        self._profile: profile | None = None
        self._forward: Counter[str] = Counter()

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
        if self._steps_to_go is None or not trainer.is_global_zero:
            return
        if torch.autograd._profiler_enabled():
            rank_zero_warn("another profiler is running, so the receipt will name no kernels")
            self._steps_to_go = None
        elif self._steps_to_go:
            self._steps_to_go -= 1
        else:
            self._start(module.device)

    def on_before_backward(self, trainer: Trainer, module: LightningModule, loss: Tensor) -> None:
        if self._profile is not None:
            self._forward = self._stop()
            self._start(module.device)

    def on_after_backward(self, trainer: Trainer, module: LightningModule) -> None:
        if self._profile is None:
            return
        backward, self._steps_to_go = self._stop(), None
        self._record(SeenKernels(self._step, _attention(self._forward), _attention(backward)))
        if broken := broken_promises(self._promises, {*self._forward, *backward}):
            raise WrongKernel("; ".join(broken))

    def on_train_batch_end(self, *_: Any) -> None:
        self._stop()  # still open when the step returned no loss: the next one is watched instead

    def on_exception(self, *_: Any) -> None:
        self._stop()

    def _start(self, device: torch.device) -> None:
        self._profile = quiet_profile(device.type)
        self._profile.__enter__()

    def _stop(self) -> Counter[str]:
        if self._profile is None:
            return Counter()
        profiled, self._profile = self._profile, None
        profiled.__exit__(None, None, None)
        return Counter(event.name for event in profiled.function_events)


def quiet_profile(device: str) -> profile:
    """A profiler of what a torch device type computes, which prints nothing of its own."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or it prints its start, stop and lack of a GPU
    # torch.profiler.profile would first import the compiler, a second, to describe its trace.
    return profile(use_device="cuda" if device == "cuda" else None)


def broken_promises(promises: Mapping[str, Kernels], seen: set[str]) -> list[str]:
    """What the seen kernels contradict, one sentence each; empty when every promise was kept.

    Names may hold `*`. What one backend forbids and another requires is allowed, since a name does
    not tell the layer.
    """
    allowed = {name for one in promises.values() for name in _matching(seen, one.required)}
    broken = []
    for backend, kernels in promises.items():
        absent = sorted(name for name in kernels.required if not _matching(seen, [name]))
        wrong = sorted(_matching(seen, kernels.forbidden) - allowed)
        if absent:
            broken.append(f"backend={backend} promises {', '.join(absent)}, which did not run")
        if wrong:
            broken.append(f"backend={backend} rules out {', '.join(wrong)}, which ran")
    return broken


def _matching(seen: set[str], patterns: Iterable[str]) -> set[str]:
    return {name for name in seen for pattern in patterns if fnmatchcase(name, pattern)}


def _attention(kernels: Counter[str]) -> dict[str, int]:
    return {name: kernels[name] for name in sorted(kernels) if ATTENTION.search(name)}
