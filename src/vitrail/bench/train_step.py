"""`bench=step`: training steps and inference of the config's model, by every backend and others."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from vitrail.attention import backends
from vitrail.attention.backends import AUTO, Backend
from vitrail.attention.selection import stopwatch
from vitrail.attention.selection.layers import LayerPlan, Rules, plan_layers
from vitrail.attention.selection.requests import attention_layers
from vitrail.attention.selection.stopwatch import Times
from vitrail.bench.bare_loop import Loop, NoAttention, StepParts, step_of, use_backends
from vitrail.bench.device import matmul_peak, peak_mib
from vitrail.bench.harness import Summary, TimedBench, check_one_device
from vitrail.bench.report import Chart, Row
from vitrail.bench.statistics import mean_interval, paired_ratio
from vitrail.bench.step_baselines import LIGHTNING, Turns, drive, timm_twin
from vitrail.data.batches import Batch
from vitrail.errors import UserError
from vitrail.model import ViT
from vitrail.model.flops import forward_flops
from vitrail.run.plan import Plan, build_classifier, build_network, device_of
from vitrail.training.classifier import Classifier
from vitrail.training.precision import Arithmetic, attention_dtype

TRAINING, INFERENCE = "training", "inference"
TIMM, COMPILED, OWN = "timm", "compiled", "own"
CLASSES = 10  # where the config leaves their number to the data, which is not read


@dataclass(frozen=True)
class Member:
    """One way to compute the step.

    layers: each attention layer's backend, which the network is given at each turn. beyond_mib:
    what a step takes on top of the loop's state, None where it cannot be told. took: seconds of the
    first step, in which kernels are set up and graphs compiled, and of the next.
    """

    loop: Loop
    layers: Mapping[str, str | Backend]
    beyond_mib: float | None
    took: Sequence[float]

    def figures(self) -> Row:
        """What a step takes beside time."""
        state = self.loop.state_mib
        peak = None if self.beyond_mib is None else state + self.beyond_mib
        return {"peak_mib": peak, "state_mib": state, "first_step_s": self.took[0]}

    def turn(self, steps: int) -> None:
        """As many steps as it takes at a time."""
        use_backends(self.loop.network, self.layers)
        for _ in range(steps):
            self.loop.step()


class Setting:
    """What the members of one mode share: model and batch, and where and how they compute.

    Raises UserError for what clashes in the config.
    """

    def __init__(self, config: DictConfig, *, training: bool, total_steps: int):
        self.config, self.training = config, training
        self.device = device_of(config.trainer.accelerator).type
        self.plan = Plan.asking(config, training=training)
        self.classes = config.model.num_classes or CLASSES
        arithmetic = Arithmetic.of(self.plan.precision)
        own, clip = self.classifier(nn.Identity()), config.trainer.gradient_clip_val
        learning = own.optim, own.mixing, own.label_smoothing, clip, total_steps
        self.parts = StepParts(self._noise(arithmetic.dtype), arithmetic, training, *learning)

    @cached_property
    def network(self) -> nn.Module:
        """What all members begin from."""
        network = build_network(self.config, self.classes, pretrained=False)
        use_backends(network, dict.fromkeys(attention_layers(network), "reference"))
        return network

    @cached_property
    def own(self) -> tuple[str, dict[str, LayerPlan], str]:
        """The member that computes as the config has it, its layers, and the one that auto takes.

        Raises Refused or FailedGate where the config names a backend that may not.
        """
        if not self.plan.layers:
            return OWN, {}, ""
        backend, automatic = self.config.backend, self.layers(AUTO)
        used = {*names_of(automatic).values()}
        auto = used.pop() if len(used) == 1 else AUTO
        if backend == AUTO:
            return auto, automatic, auto
        return backend, self.layers(backend), auto

    @property
    def flops(self) -> int:
        """Floating-point operations of a step; backward computes twice what forward does."""
        forward = forward_flops(self.plan.meta_model, self.plan.data.image_size)
        return forward * self.plan.data.batch_size * (3 if self.training else 1)

    def classifier(self, network: nn.Module) -> Classifier:
        """The network as Lightning drives it."""
        names = [f"class {number}" for number in range(self.classes)]
        return build_classifier(self.config, network, names)

    def layers(self, backend: str) -> dict[str, LayerPlan]:
        """That backend in each layer, proved; raises Refused or FailedGate."""
        asked = {name: layer.requests for name, layer in self.plan.layers.items()}
        rules = Rules(backend, gate=True, deterministic=self.config.deterministic)
        return plan_layers(asked, self.plan.meta_model, rules)

    def words(self, member: str) -> Row:
        """The columns that tell a member's row from others."""
        height, width = self.plan.data.image_size
        return {
            "member": member,
            "mode": TRAINING if self.training else INFERENCE,
            "model": "timm " * (member == TIMM) + type(self.plan.meta_model).__name__,
            "batch": self.plan.data.batch_size,
            "image": f"{height}x{width}",
            "precision": self.plan.precision,
            "device": self.device,
        }

    def member(
        self, loop: Loop, layers: Mapping[str, str], measured: nn.Module | None = None
    ) -> Member:
        """Takes the first two steps; raises MemoryError or RuntimeError where they cannot be.

        measured: the network whose step's memory is, which on a CPU another process is sent.
        """
        counted = measured is not None
        how = (step_of, measured, layers, self.parts)
        beyond = peak_mib(*how, device=self.device) if counted else None
        use_backends(loop.network, layers)
        readings = [stopwatch.clock(loop.device)]
        for _ in range(2):
            loop.step()
            readings.append(stopwatch.clock(loop.device))
        took = [after - before for before, after in pairwise(readings)]
        return Member(loop, layers, beyond, took)

    def compiled(self) -> Member:
        """The network in a graph of torch.compile; RuntimeError where that cannot be made."""
        network, layers = deepcopy(self.network), names_of(self.own[1])
        use_backends(network, layers)
        network.compile()
        return self.member(Loop(network, self.parts), layers)

    def timm(self) -> Member:
        """The same network by timm; UserError where timm has none like it."""
        if not isinstance(self.network, ViT):
            raise UserError("the model itself is timm's")
        if self.parts.batch.valid is not None:
            raise UserError("timm's VisionTransformer takes no padding; use data.resize=crop")
        config = OmegaConf.to_container(self.config.model, resolve=True)
        network = timm_twin(self.network, config)
        return self.member(Loop(network, self.parts), {}, network)

    def _noise(self, dtype: torch.dtype) -> Batch:
        """Of the data's shape; where images are padded, every other one is half as wide."""
        size, (height, width) = self.plan.data.batch_size, self.plan.data.image_size
        generator, valid = torch.Generator().manual_seed(0), None
        images = torch.randn(size, 3, height, width, generator=generator)
        labels = torch.randint(self.classes, (size,), generator=generator)
        if self.config.data.resize == "native":
            valid = torch.ones(size, height, width, dtype=torch.bool, device=self.device)
            valid[1::2, :, width // 2 :] = False
        return Batch(images.to(self.device, dtype), labels.to(self.device), valid)


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
        own, _, auto = setting.own
        members, refused = self._members(setting)
        a_step_each = sum(member.took[1] for member in members.values())
        fitting = int(self.seconds / (self.rounds + 1) / a_step_each)
        steps = max(1, min(self.steps, fitting))
        times = self._times(setting, members, steps)
        rest = times.pop(NoAttention.name, None)
        peak, _ = matmul_peak(attention_dtype(setting.plan.precision), setting.device)
        images, rows = steps * setting.plan.data.batch_size, []
        for name, row in self.rows_of(times, "step_ms", steps=steps, images=images).items():
            used = dict.fromkeys(members.get(name, members[own]).layers.values())
            row = {**setting.words(name), "backend": " + ".join(used), "steps": steps, **row}
            row["mfu_percent"] = 100 * setting.flops * steps / times[name].median / peak
            if rest is not None and name not in (TIMM, COMPILED, LIGHTNING):
                ratio = paired_ratio(rest.seconds, times[name].seconds)
                row |= ratio.scaled(-100, 100).columns("attention_percent")
            if name == LIGHTNING:
                ratio = paired_ratio(times[name].seconds, times[own].seconds)
                row |= ratio.scaled(100, -100).columns("overhead_percent")
                pairs = zip(times[name].seconds, times[own].seconds, strict=True)
                more, _ = mean_interval([one - other for one, other in pairs])
                row |= more.scaled(1000 / steps).columns("overhead_ms")
            else:
                row |= members[name].figures()
            rows.append(row | {"auto": name == auto, "refused": ""})
        return rows + [
            {**setting.words(name), "backend": name, "refused": reason}
            for name, reason in refused.items()
        ]

    def summary(self, rows: pd.DataFrame) -> Summary:
        return {}, [
            Chart(f"{mode}: speed and memory", part, "peak_mib", "images_per_second", "member")
            for mode, part in rows.groupby("mode", sort=False)
        ]

    @cached_property
    def _settings(self) -> dict[str, Setting]:
        steps = self.steps * (self.rounds + 1) + 1
        return {
            mode: Setting(self.config, training=mode == TRAINING, total_steps=steps)
            for mode in (TRAINING, INFERENCE)
        }

    def _members(self, setting: Setting) -> tuple[dict[str, Member], dict[str, str]]:
        """Those to be timed, and the reasons of the others."""
        own, layers, _ = setting.own
        loop = Loop(deepcopy(setting.network), setting.parts)

        def by(name: str) -> Member:
            used = names_of(layers if name == own else setting.layers(name))
            return setting.member(loop, used, setting.network)

        asked = dict.fromkeys((self.backends or backends.names()) if layers else ())
        makers = {name: partial(by, name) for name in {**asked, own: None}}
        makers[TIMM] = setting.timm
        if self.config.compile:
            makers[COMPILED] = setting.compiled
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
        self, setting: Setting, members: Mapping[str, Member], steps: int
    ) -> dict[str, Times]:
        """Seconds of each member's turns, of turns without attention, and of Lightning's."""
        own, layers, _ = setting.own
        turns = {name: partial(member.turn, steps) for name, member in members.items()}
        if layers:
            rest = replace(members[own], layers=dict.fromkeys(layers, NoAttention()))
            turns[NoAttention.name] = partial(rest.turn, steps)
        how = {"device": setting.device, "rounds": self.rounds, "clock": self.clock}
        if not setting.training:
            return stopwatch.interleave(turns, **how)
        network = deepcopy(setting.network)
        use_backends(network, names_of(layers))
        loader = Turns(turns, setting.parts.batch, steps=steps, **how)
        plan, classifier = replace(setting.plan, layers=layers), setting.classifier(network)
        with TemporaryDirectory(prefix="lightning-", dir=self.folder) as folder:
            drive(loader, classifier, setting.config, plan, Path(folder))
        return loader.times


def names_of(layers: Mapping[str, LayerPlan]) -> dict[str, str]:
    """The name of each layer's backend."""
    return {name: layer.backend.name for name, layer in layers.items()}
