"""`bench=step`: training steps and inference of the config's model, by every backend and others."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from omegaconf import DictConfig

from vitrail.attention import backends
from vitrail.attention.backends import AUTO
from vitrail.attention.selection import stopwatch
from vitrail.attention.selection.layers import LayerPlan
from vitrail.attention.selection.stopwatch import Times
from vitrail.bench.bare_loop import NoAttention, use_backends
from vitrail.bench.device import matmul_peak
from vitrail.bench.harness import (
    Summary,
    check_one_device,
    check_rounds,
    compared,
    speed_columns,
    time_columns,
)
from vitrail.bench.lightning_loop import LIGHTNING, Turns, drive
from vitrail.bench.report import Chart, Row
from vitrail.bench.statistics import Interval, mean_interval, paired_ratio
from vitrail.bench.step_members import Member, Setting, compiled_member, names_of, timm_member
from vitrail.errors import UserError

TRAINING, INFERENCE = "training", "inference"
TIMM, COMPILED, OWN = "timm", "compiled", "own"


@dataclass(frozen=True, kw_only=True)
class StepBench:
    """The step of the config's model, batch size and precision, on noise of its data's shape.

    Members, in turn within each round: every backend in a loop of torch alone; `timm`, the same
    architecture and weights by timm; `compiled` where the config says so; and in training
    `lightning`, which does all that train.py does around a step. The data are not read. One device
    computes, gradients are not accumulated, and weights not averaged. A backend that cannot serve
    the model, fails its gate, or finds too little memory becomes a row with the reason.

    The keys are described in configs/bench/step.yaml. A turn with as many steps as Lightning has
    from one that it logs to the next holds one of those. Raises UserError for what cannot be
    measured, before anything is.
    """

    config: DictConfig
    folder: Path
    backends: Sequence[str] | None
    rounds: int
    steps: int
    seconds: float
    baseline: str | None
    clock: Callable[[str], float] = stopwatch.clock

    keys = ("member", "mode", "backend", "model", "batch", "image", "precision", "device")
    columns = (
        "step_ms", "time_ratio", "verdict", "baseline", "images_per_second", "attention_percent",
        "mfu_percent", "peak_mib", "overhead_ms", "overhead_percent", "first_step_s", "auto",
    )  # fmt: skip

    def __post_init__(self):
        check_one_device(self.config)
        check_rounds(self.rounds, self.seconds)
        if self.steps < 1:
            raise UserError(f"bench.steps must be >= 1, got {self.steps}")
        if self.backends is not None and not self.backends:
            raise UserError("bench.backends=[] leaves nothing to measure; name one")
        for name in (self.config.backend, *(self.backends or ())):
            if name != AUTO:
                backends.load(name)  # raises for an unknown name, with those that there are
        setting = self._settings[TRAINING]
        if self.backends is not None:
            setting.plan.check_backend(self.backends[0])
        known = (*backends.names(), AUTO, TIMM, COMPILED, LIGHTNING, OWN)
        if self.baseline is not None and self.baseline not in known:
            raise UserError(f"bench.baseline takes {', '.join(known)}, got {self.baseline}")

    def cells(self) -> Sequence[str]:
        return [TRAINING, INFERENCE]

    def measure(self, cell: str) -> list[Row]:
        """A row a member, the fastest first, refused ones last."""
        setting = self._settings[cell]
        own, layers, auto = self._own(setting)
        members, refused = self._members(setting, own, layers)
        a_step_each = sum(member.took[1] for member in members.values())
        fitting = int(self.seconds / (self.rounds + 1) / a_step_each)
        steps = max(1, min(self.steps, fitting))
        times = self._times(setting, members, members[own], layers, steps)
        rest = times.pop(NoAttention.name, None)
        ratios, batch = compared(times, self.baseline), setting.plan.data.batch_size
        arithmetic = setting.arithmetic
        peak, _ = matmul_peak(arithmetic.autocast or arithmetic.dtype, setting.device)
        rows = []
        for name in sorted(times, key=lambda name: times[name].median):
            used = dict.fromkeys(members.get(name, members[own]).layers.values())
            flops_per_s = setting.flops * steps / times[name].median
            row = self._words(cell, name) | {
                "backend": " + ".join(used),
                "steps": steps,
                **time_columns("step_ms", times[name], steps),
                **ratios[name],
                **speed_columns(times[name], batch * steps),
                "mfu_percent": 100 * flops_per_s / peak,
                "auto": name == auto,
                "refused": "",
            }
            if rest is not None and name not in (TIMM, COMPILED, LIGHTNING):
                row |= _attention_share(times[name], rest)
            if name == LIGHTNING:
                row |= _overhead(times[name], times[own], steps)
            else:
                row |= members[name].figures()
            rows.append(row)
        return rows + [
            {**self._words(cell, name), "backend": name, "refused": reason}
            for name, reason in refused.items()
        ]

    def summary(self, rows: pd.DataFrame) -> Summary:
        return Summary(
            charts=[
                Chart(f"{mode}: speed and memory", part, "peak_mib", "images_per_second", "member")
                for mode, part in rows.groupby("mode", sort=False)
            ]
        )

    @cached_property
    def _settings(self) -> dict[str, Setting]:
        steps = self.steps * (self.rounds + 1) + 1
        return {
            mode: Setting(self.config, training=mode == TRAINING, total_steps=steps)
            for mode in (TRAINING, INFERENCE)
        }

    def _own(self, setting: Setting) -> tuple[str, dict[str, LayerPlan], str]:
        """The member that computes as the config has it, its layers, and the one that auto takes.

        Raises Refused or FailedGate where the config names a backend that may not.
        """
        if not setting.plan.layers:
            return OWN, {}, ""
        backend, automatic = self.config.backend, setting.layers(AUTO)
        used = {*names_of(automatic).values()}
        auto = used.pop() if len(used) == 1 else AUTO
        return (
            (auto, automatic, auto) if backend == AUTO else (backend, setting.layers(backend), auto)
        )

    def _members(
        self, setting: Setting, own: str, layers: Mapping[str, LayerPlan]
    ) -> tuple[dict[str, Member], dict[str, str]]:
        """Those to be timed, and the reasons of the others."""
        loop = setting.loop(deepcopy(setting.network))
        asked = dict.fromkeys((self.backends or backends.names()) if layers else ())
        makers: dict[str, Callable[[], Member]] = {}
        refused = {}
        for name in {**asked, own: None}:
            used = names_of(layers) if name == own else dict.fromkeys(setting.plan.layers, name)
            if name != own and (reason := setting.refusal(name)):
                refused[name] = reason
                continue
            makers[name] = lambda used=used: Member.of(
                loop, used, setting.peak(setting.network, used)
            )
        makers[TIMM] = partial(timm_member, setting)
        if self.config.compile:
            makers[COMPILED] = partial(compiled_member, setting, names_of(layers))
        members = {}
        for name, make in makers.items():
            try:
                members[name] = make()
            except (MemoryError, RuntimeError, UserError) as error:
                refused[name] = str(error).partition("\n")[0]
        if own in refused:
            raise UserError(f"the config's own step cannot be computed: {refused[own]}")
        return members, refused

    def _times(
        self,
        setting: Setting,
        members: Mapping[str, Member],
        own: Member,
        layers: Mapping[str, LayerPlan],
        steps: int,
    ) -> dict[str, Times]:
        """Seconds of each member's turns, of turns without attention, and of Lightning's."""
        turns = {name: partial(member.turn, steps) for name, member in members.items()}
        if layers:
            rest = replace(own, layers=dict.fromkeys(layers, NoAttention()))
            turns[NoAttention.name] = partial(rest.turn, steps)
        how = {"device": setting.device, "rounds": self.rounds, "clock": self.clock}
        if not setting.training:
            return stopwatch.interleave(turns, **how)
        network = deepcopy(setting.network)
        use_backends(network, names_of(layers))
        loader, plan = Turns(turns, setting.batch, steps=steps, **how), setting.plan
        with TemporaryDirectory(prefix="lightning-", dir=self.folder) as folder:
            drive(
                loader,
                setting.classifier(network),
                setting.config,
                replace(plan, layers=layers),
                Path(folder),
            )
        return loader.times

    def _words(self, mode: str, name: str) -> Row:
        plan = self._settings[mode].plan
        ours = type(plan.meta_model).__name__
        return {
            "member": name,
            "mode": mode,
            "model": "timm's VisionTransformer" if name == TIMM else ours,
            "batch": plan.data.batch_size,
            "image": "{}x{}".format(*plan.data.image_size),
            "precision": plan.precision,
            "device": self._settings[mode].device,
        }


def _attention_share(whole: Times, rest: Times) -> Row:
    """What a step takes for its attention calls, gradients included, by pairs of one round."""
    ratio = paired_ratio(rest.seconds, whole.seconds)
    share = Interval(*(100 * (1 - end) for end in (ratio.value, ratio.high, ratio.low)))
    return share.columns("attention_percent")


def _overhead(lightning: Times, bare: Times, steps: int) -> Row:
    """What Lightning's step takes more than the bare one, by pairs of the same round."""
    pairs = zip(lightning.seconds, bare.seconds, strict=True)
    more = mean_interval([1000 * (one - other) / steps for one, other in pairs])
    ratio = paired_ratio(lightning.seconds, bare.seconds)
    percent = Interval(*(100 * (end - 1) for end in (ratio.value, ratio.low, ratio.high)))
    return {**more.columns("overhead_ms"), **percent.columns("overhead_percent")}
