"""Whether a training is long enough to earn back what torch.compile takes."""

import math
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import Timer
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor, nn

from vitrail.attention.backends.flex import missing_tool
from vitrail.attention.selection.stopwatch import clock, interleave
from vitrail.run.assemble import AUTO, Plan, device_of
from vitrail.training.precision import Arithmetic

LEAST_S = 10  # that a compilation took where we measured one
MOST_SAVED = 0.3  # of a step
ROUNDS = 5

say = rank_zero_only(print)


@dataclass(frozen=True)
class Compiling:
    """Whether the network is compiled, and the reason as half a sentence."""

    chosen: bool
    why: str

    @classmethod
    def settled(
        cls, config: DictConfig, plan: Plan, network: nn.Module, *, done: int
    ) -> "Compiling":
        """What `config.compile` comes to for the steps that follow the `done` ones.

        plan: its data are set up.
        """
        if config.compile != AUTO:
            return cls(config.compile, "asked for" if config.compile else "compile=false")
        trainer = OmegaConf.to_container(config.trainer, resolve=True)
        device = device_of(trainer["accelerator"])
        data = plan.data
        noise = torch.Generator().manual_seed(0)  # not the one that the training draws from
        images = torch.randn(data.batch_size, 3, *data.image_size, generator=noise).to(device)
        real = torch.ones_like(images[:, 0], dtype=torch.bool)
        return cls.measured(
            network,
            (images, real) if config.data.resize == "native" else (images,),
            precision=plan.precision,
            steps=steps_ahead(trainer, len(data.loader("train")), done),
            seconds=Timer(trainer["max_time"]).time_remaining() or math.inf,
        )

    @classmethod
    def measured(
        cls,
        network: nn.Module,
        images: tuple[Tensor, ...],
        *,
        precision: str,
        steps: int,
        seconds: float = math.inf,
        read: Callable[[str], float] = clock,
    ) -> "Compiling":
        """Whether a graph spares more in so many steps than it takes to make.

        Forward and backward of copies of the network are timed. One is compiled only for a training
        that could spare `LEAST_S` seconds, so that a short one does not wait for the answer.

        images: what a step's forward is called with, on the device. seconds: when training ends,
        however few steps it has taken. read: the clock.
        """
        device = images[0].device.type
        if tool := missing_tool(device):
            return cls(False, f"auto: this machine lacks {tool}")
        arithmetic = Arithmetic.of(precision)
        plain = Pass(network, images, arithmetic)
        # The first pass, in which kernels are set up, says how long a training takes at most.
        for rounds in (1, ROUNDS):
            every = {"plain": plain}
            took = interleave(every, device=device, rounds=rounds, warm_up=0, clock=read)["plain"]
            if took.median * steps > seconds:
                steps = int(seconds / took.median)
            if took.median * steps * MOST_SAVED < LEAST_S:
                return cls(
                    False,
                    f"auto: {steps:,} steps of {took.median:.2f} s are too few to earn a "
                    "compilation back",
                )
        graph = Pass(network, images, arithmetic)
        graph.network.compile()
        before = read(device)
        try:
            graph()
        except RuntimeError as error:
            return cls(False, f"auto: it cannot be compiled here: {str(error).splitlines()[0]}")
        compile_s = read(device) - before
        both = {"plain": plain, "graph": graph}
        times = interleave(both, device=device, rounds=ROUNDS, clock=read)
        saved = times["plain"].median - times["graph"].median
        ratio = f"{times['graph'].median / times['plain'].median:.2f} times the seconds of a step"
        if saved <= 0:
            return cls(False, f"auto: a graph takes {ratio}")
        earned = f"the {compile_s:.0f} s it took are earned in {compile_s / saved:,.0f} steps"
        return cls(saved * steps > compile_s, f"auto: a graph takes {ratio}; {earned} of {steps:,}")


class Pass:
    """Called, a copy of a network goes forward and backward once; the network stays as it is."""

    def __init__(self, network: nn.Module, images: tuple[Tensor, ...], arithmetic: Arithmetic):
        self.network = deepcopy(network).to(images[0].device, arithmetic.dtype).train()
        self._images = (images[0].to(arithmetic.dtype), *images[1:])
        self._arithmetic, self._device = arithmetic, images[0].device.type

    def __call__(self) -> None:
        with torch.random.fork_rng(), self._arithmetic.casting(self._device):
            logits = self.network(*self._images)
        logits.float().square().mean().backward()
        self.network.zero_grad()


class CompileTime(Callback):
    """Says how long the first step took, in which torch compiles, beside the third.

    The second is the one that `KernelWatch` profiles.
    """

    def __init__(self) -> None:
        self._began = 0.0
        self._took: list[float] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._began = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if len(self._took) == 3:
            return
        self._took.append(clock(pl_module.device.type) - self._began)
        if len(self._took) == 3:
            first, _, third = self._took
            say(f"compiled: the first step took {first:.1f} s, the third {third:.2f} s")


def steps_ahead(limits: Mapping[str, Any], batches: int, done: int) -> int:
    """Batches that a training will see, by Lightning's limits and the batches of an epoch.

    limits: the arguments of the trainer. done: optimizer steps before it.
    """
    some = limits.get("limit_train_batches")
    if some is not None:
        batches = min(batches, some) if isinstance(some, int) else int(batches * some)
    accumulated = limits.get("accumulate_grad_batches") or 1
    ends = []
    if (limits.get("max_epochs") or -1) > 0:
        ends.append(limits["max_epochs"] * batches)
    if (limits.get("max_steps") or -1) > 0:
        ends.append(limits["max_steps"] * accumulated)
    return max(0, min(ends, default=0) - done * accumulated)
