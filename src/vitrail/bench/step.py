"""Whole training steps and inference of the config's own model, by every backend and by others."""

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from vitrail.attention import backends
from vitrail.attention.backends import AUTO
from vitrail.attention.selection.layers import LayerPlan
from vitrail.attention.selection.stopwatch import Times, clock, interleave
from vitrail.bench.bare_loop import set_backends
from vitrail.bench.intervals import Interval, median_interval
from vitrail.bench.lightning_loop import LIGHTNING, Turns, drive
from vitrail.bench.matmul_peak import matmul_peak
from vitrail.bench.measurement import Cell, Context, Findings, Row
from vitrail.bench.one_device import check_one_device
from vitrail.bench.step_findings import findings
from vitrail.bench.step_members import (
    COMPILED,
    OWN,
    TIMM,
    Member,
    Setting,
    chosen,
    compiled,
    first_line,
    members_of,
    only,
)
from vitrail.errors import UserError

TRAINING, INFERENCE = "training", "inference"
LEAST_ROUNDS = 6  # that bound a median, see `median_interval`


@dataclass(frozen=True, kw_only=True)
class StepBench:
    """The step of the config's model, batch size and precision, on noise of its data's shape.

    Members, in turn within each round: every backend in a loop of torch alone; `timm`, the same
    architecture and weights by timm; `compiled` where the config says `compile=true` or `auto`;
    and in training `lightning`, which does all that train.py does around a step. The data are not
    read. One device computes, gradients are not accumulated, and weights not averaged.

    backends: names, None for all. rounds: turns of each member. steps: that a member takes in a
    turn, or fewer where the rounds of a mode would take more than `seconds`, but at least one. A
    turn with as many steps as Lightning has from one that it logs to the next holds one of those.
    read: the clock, see `interleave`.

    A backend that cannot serve the model, fails its gate, or finds too little memory becomes a row
    with the reason. Raises UserError for what cannot be measured at all.
    """

    context: Context
    backends: Sequence[str] | None
    rounds: int
    steps: int
    seconds: float
    read: Callable[[str], float] = clock

    keys = ("mode", "member", "model", "batch", "image", "precision", "device")
    columns = (
        "mode", "member", "step_ms", "images_per_second", "attention_percent", "mfu_percent",
        "peak_mib", "time_vs_timm", "overhead_percent", "auto",
    )  # fmt: skip

    def __post_init__(self):
        check_one_device(self.context.config)
        if self.rounds < LEAST_ROUNDS:
            raise UserError(
                f"bench.rounds={self.rounds} bounds no median; use {LEAST_ROUNDS} or more"
            )
        for name in ("steps", "seconds"):
            if not getattr(self, name) > 0:
                raise UserError(f"bench.{name}={getattr(self, name)} measures nothing; use 1")
        if self.backends is not None and not self.backends:
            raise UserError("bench.backends=[] leaves nothing to measure; name one")
        for name in (self.context.config.backend, *(self.backends or ())):
            if name not in backends.names():
                backends.load(name)
        setting = self._settings[TRAINING]
        if self.backends is not None:
            setting.plan.check_backend(self.backends[0])

    def cells(self) -> Sequence[Cell]:
        plan = self._settings[TRAINING].plan
        height, width = plan.data.image_size
        shape = f"{plan.data.batch_size} x 3 x {height} x {width}"
        name = type(plan.meta_model).__name__
        return [
            Cell(mode, f"{mode}: {name}, {shape}, {plan.precision}")
            for mode in (TRAINING, INFERENCE)
        ]

    def measure(self, cell: Cell) -> list[Row]:
        """A row a member, the fastest first, refused ones last."""
        setting = self._settings[cell.key]
        own, layers, auto = self._chosen(setting)
        members, refused = self._members(setting, own, layers)
        steps = self._steps_of_a_turn(members.values())
        times = self._times(setting, members, layers, steps)
        about = {name: self._about(cell.key, name) for name in (*times, *refused)}
        rows = [
            {
                **about[name],
                "backend": members.get(name, members[own]).backend,
                "steps": steps,
                **_speed(times[name], steps, setting.plan.data.batch_size),
                **_cost(setting, members.get(name), times[name].median / steps),
                **_compared(times[name], times.get(TIMM)),
                **_overhead(times[name] if name == LIGHTNING else None, times[own], steps),
                "auto": name == auto,
                "refused": "",
            }
            for name in sorted(times, key=lambda name: times[name].median)
        ]
        blank = dict.fromkeys(rows[0])
        return rows + [
            {**blank, **about[name], "backend": name, "auto": False, "refused": reason}
            for name, reason in refused.items()
        ]

    def findings(self, rows: Sequence[Row]) -> Findings:
        return findings(rows)

    @cached_property
    def _settings(self) -> dict[str, Setting]:
        steps = self.steps * (self.rounds + 1) + 1
        return {
            mode: Setting(self.context.config, training=mode == TRAINING, total_steps=steps)
            for mode in (TRAINING, INFERENCE)
        }

    def _chosen(self, setting: Setting) -> tuple[str, dict[str, LayerPlan], str]:
        """The member that computes as the config has it, its layers, and the one that auto takes.

        Raises Refused or FailedGate where the config names a backend that may not.
        """
        if not setting.plan.layers:
            return OWN, {}, ""
        backend, automatic = self.context.config.backend, setting.layers(AUTO)
        layers = automatic if backend == AUTO else setting.layers(backend)
        return only(layers) if backend == AUTO else backend, layers, only(automatic)

    def _members(
        self, setting: Setting, own: str, layers: Mapping[str, LayerPlan]
    ) -> tuple[dict[str, Member], dict[str, str]]:
        """Those to be timed, and the reasons of the others."""
        asked = dict.fromkeys((self.backends or backends.names()) if layers else ())
        members, refused = members_of(setting, {**asked, own: chosen(layers)})
        if own in refused:
            raise UserError(f"the config's own step cannot be computed: {refused[own]}")
        if self.context.config.compile:
            try:
                members[COMPILED] = compiled(setting, chosen(layers))
            except RuntimeError as error:
                refused[COMPILED] = first_line(error)
        return members, refused

    def _steps_of_a_turn(self, members: Collection[Member]) -> int:
        """As many as `seconds` allow, by the steps that have been taken."""
        a_step_each = sum(member.second_s for member in members)
        fitting = self.seconds / (self.rounds + 1) / a_step_each
        return max(1, min(self.steps, int(fitting)))

    def _times(
        self,
        setting: Setting,
        members: Mapping[str, Member],
        layers: Mapping[str, LayerPlan],
        steps: int,
    ) -> dict[str, Times]:
        """Seconds of the turns of each member, and in training of Lightning's."""
        turns = {name: partial(member.turn, steps) for name, member in members.items()}
        how = {"device": setting.device, "rounds": self.rounds, "clock": self.read}
        if not setting.training:
            return interleave(turns, **how)
        network = deepcopy(setting.network)
        set_backends(network, chosen(layers))
        loader = Turns(turns, setting.batch, steps=steps, **how)
        plan = replace(setting.plan, layers=layers)
        with TemporaryDirectory(prefix="lightning-", dir=self.context.folder) as folder:
            classifier = setting.classifier(network)
            drive(loader, classifier, setting.config, plan, Path(folder))
        return loader.times

    def _about(self, mode: str, name: str) -> Row:
        plan = self._settings[mode].plan
        height, width = plan.data.image_size
        return {
            "mode": mode,
            "member": name,
            "model": "VisionTransformer of timm"
            if name == TIMM
            else type(plan.meta_model).__name__,
            "batch": plan.data.batch_size,
            "image": f"{height}x{width}",
            "precision": plan.precision,
            "device": self._settings[mode].device,
        }


def _speed(times: Times, steps: int, batch: int) -> Row:
    ends = {"": times.median, "_p10": times.band[0], "_p90": times.band[1]}
    slower = {"": "", "_p10": "_p90", "_p90": "_p10"}
    return {
        **{f"step_ms{end}": 1000 * seconds / steps for end, seconds in ends.items()},
        **{f"images_per_second{end}": batch * steps / ends[slower[end]] for end in ends},
    }


def _cost(setting: Setting, member: Member | None, step_s: float) -> Row:
    """What a step is made of and takes; of Lightning's, which is no other, only the speed."""
    peak = matmul_peak(setting.arithmetic.autocast or setting.arithmetic.dtype, setting.device)
    share = beyond = state = None
    if member is not None:
        share, beyond, state = member.attention_share(), member.beyond_mib, member.loop.state_mib
    return {
        "attention_percent": None if share is None else 100 * share,
        "mfu_percent": 100 * setting.flops / step_s / peak,
        "peak_mib": None if beyond is None else state + beyond,
        "state_mib": state,
        "first_step_s": None if member is None else member.first_s,
    }


def _compared(times: Times, timm: Times | None) -> Row:
    """How many times as long as timm's step, by pairs of the same round."""
    if timm is None:
        return _interval("time_vs_timm", None)
    pairs = zip(times.seconds, timm.seconds, strict=True)
    return _interval("time_vs_timm", median_interval([mine / theirs for mine, theirs in pairs]))


def _overhead(lightning: Times | None, bare: Times, steps: int) -> Row:
    """What Lightning's step takes more than the bare one, by pairs of the same round."""
    if lightning is None:
        return {**_interval("overhead_ms", None), **_interval("overhead_percent", None)}
    pairs = list(zip(lightning.seconds, bare.seconds, strict=True))
    more = median_interval([1000 * (one - other) / steps for one, other in pairs])
    share = median_interval([100 * (one / other - 1) for one, other in pairs])
    return {**_interval("overhead_ms", more), **_interval("overhead_percent", share)}


def _interval(name: str, interval: Interval | None) -> Row:
    if interval is None:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"))
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
