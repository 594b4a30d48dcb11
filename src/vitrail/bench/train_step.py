"""`bench=step`: training steps and inference of the config's model, by every backend and others."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from vitrail.attention import backends
from vitrail.attention.backends import AUTO
from vitrail.attention.selection import stopwatch
from vitrail.attention.selection.layers import LayerPlan
from vitrail.attention.selection.stopwatch import Times
from vitrail.bench.bare_loop import NoAttention, use_backends
from vitrail.bench.device import matmul_peak
from vitrail.bench.harness import (
    Summary,
    TimedBench,
    check_names,
    check_one_device,
    speed_columns,
)
from vitrail.bench.lightning_loop import LIGHTNING, Turns, drive
from vitrail.bench.report import Chart, Row
from vitrail.bench.statistics import Interval, mean_interval, paired_ratio
from vitrail.bench.step_members import Member, Setting, compiled_member, names_of, timm_member
from vitrail.errors import UserError

TRAINING, INFERENCE = "training", "inference"
TIMM, COMPILED, OWN = "timm", "compiled", "own"


@dataclass(frozen=True, kw_only=True)
class StepBench(TimedBench):
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

    backends: Sequence[str] | None
    steps: int

    keys = ("member", "mode", "backend", "model", "batch", "image", "precision", "device")
    columns = (
        "step_ms", "time_ratio", "verdict", "baseline", "images_per_second", "attention_percent",
        "mfu_percent", "peak_mib", "overhead_ms", "overhead_percent", "first_step_s", "auto",
    )  # fmt: skip

    def __post_init__(self):
        super().__post_init__()
        check_one_device(self.config)
        check_names(backends=self.backends)
        if self.steps < 1:
            raise UserError(f"bench.steps must be >= 1, got {self.steps}")
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
        arithmetic, batch = setting.arithmetic, setting.plan.data.batch_size
        peak, _ = matmul_peak(arithmetic.autocast or arithmetic.dtype, setting.device)
        rows = []
        for name, row in self.rows_of(times, "step_ms", steps).items():
            used = dict.fromkeys(members.get(name, members[own]).layers.values())
            row = {**setting.words(name), "backend": " + ".join(used), "steps": steps, **row}
            row |= speed_columns(times[name], batch * steps)
            row["mfu_percent"] = 100 * setting.flops * steps / times[name].median / peak
            if rest is not None and name not in (TIMM, COMPILED, LIGHTNING):
                ratio = paired_ratio(rest.seconds, times[name].seconds)
                row |= _percent("attention_percent", ratio, -1)
            if name == LIGHTNING:
                bare = times[own]
                ratio = paired_ratio(times[name].seconds, bare.seconds)
                row |= _percent("overhead_percent", ratio)
                pairs = zip(times[name].seconds, bare.seconds, strict=True)
                more = mean_interval([1000 * (one - other) / steps for one, other in pairs])
                row |= more.columns("overhead_ms")
            else:
                row |= members[name].figures()
            rows.append(row | {"auto": name == auto, "refused": ""})
        return rows + [
            {**setting.words(name), "backend": name, "refused": reason}
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
        if backend == AUTO:
            return auto, automatic, auto
        return backend, setting.layers(backend), auto

    def _members(
        self, setting: Setting, own: str, layers: Mapping[str, LayerPlan]
    ) -> tuple[dict[str, Member], dict[str, str]]:
        """Those to be timed, and the reasons of the others."""
        loop = setting.loop(deepcopy(setting.network))
        asked = dict.fromkeys((self.backends or backends.names()) if layers else ())

        def by(name: str) -> Member:
            used = names_of(layers if name == own else setting.layers(name))
            return Member.of(loop, used, setting.peak(setting.network, used))

        makers = {name: partial(by, name) for name in {**asked, own: None}}
        makers[TIMM] = partial(timm_member, setting)
        if self.config.compile:
            makers[COMPILED] = partial(compiled_member, setting, names_of(layers))
        members, refused = {}, {}
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
        loader = Turns(turns, setting.batch, steps=steps, **how)
        plan, classifier = replace(setting.plan, layers=layers), setting.classifier(network)
        with TemporaryDirectory(prefix="lightning-", dir=self.folder) as folder:
            drive(loader, classifier, setting.config, plan, Path(folder))
        return loader.times


def _percent(name: str, ratio: Interval, sign: int = 1) -> Row:
    """How far a ratio is above 1, or with sign=-1 below it, in percent."""
    value, *ends = (100 * sign * (end - 1) for end in (ratio.value, ratio.low, ratio.high))
    return Interval(value, *sorted(ends)).columns(name)
