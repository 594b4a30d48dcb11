"""The ways to compute a step that are timed in turn: by each backend, compiled, by timm."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from omegaconf import DictConfig, OmegaConf
from torch import nn

from vitrail.attention.selection import stopwatch
from vitrail.attention.selection.layers import LayerPlan, Rules, plan_layers
from vitrail.attention.selection.requests import attention_layers
from vitrail.bench.bare_loop import Batch, Loop, StepParts, step_of, use_backends
from vitrail.bench.device import peak_mib
from vitrail.bench.report import Row
from vitrail.bench.timm_twin import twin
from vitrail.errors import UserError
from vitrail.model import ViT
from vitrail.model.flops import forward_flops
from vitrail.run.plan import Plan, build_classifier, build_network, device_of
from vitrail.training.classifier import Classifier
from vitrail.training.precision import Arithmetic

CLASSES = 10  # where the config leaves their number to the data, which is not read


class Setting:
    """What the members of one mode share: model and batch, and where and how they compute.

    Raises UserError for what clashes in the config.
    """

    def __init__(self, config: DictConfig, *, training: bool, total_steps: int):
        self.config, self.training, self.total_steps = config, training, total_steps
        self.device = device_of(config.trainer.accelerator).type
        self.plan = Plan.asking(config, training=training)
        self.arithmetic = Arithmetic.of(self.plan.precision)
        self.classes = config.model.num_classes or CLASSES
        self.batch = Batch.noise(
            self.plan.data.batch_size,
            self.plan.data.image_size,
            classes=self.classes,
            padded=config.data.resize == "native",
            device=self.device,
            dtype=self.arithmetic.dtype,
        )

    @cached_property
    def network(self) -> nn.Module:
        """What all members begin from."""
        network = build_network(self.config, self.classes, pretrained=False)
        use_backends(network, dict.fromkeys(attention_layers(network), "reference"))
        return network

    @cached_property
    def parts(self) -> StepParts | None:
        if not self.training:
            return None
        classifier, clip = self.classifier(nn.Identity()), self.config.trainer.gradient_clip_val
        return StepParts(classifier.optim, classifier.mixing, classifier.label_smoothing, clip)

    @cached_property
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
            "mode": "training" if self.training else "inference",
            "model": f"{'timm ' if member == 'timm' else ''}{type(self.plan.meta_model).__name__}",
            "batch": self.plan.data.batch_size,
            "image": f"{height}x{width}",
            "precision": self.plan.precision,
            "device": self.device,
        }

    def loop(self, network: nn.Module) -> Loop:
        return Loop(network, self.parts, self.batch, self.arithmetic, self.total_steps)

    def peak(self, network: nn.Module, layers: Mapping[str, str]) -> float | None:
        """See `peak_mib`; what a step takes on top of the loop's state."""
        parts = (self.parts, self.batch, self.arithmetic)
        return peak_mib(step_of, network, layers, *parts, device=self.device)


@dataclass(frozen=True)
class Member:
    """One way to compute the step.

    layers: the name of each attention layer's backend, which the network is given at each turn.
    beyond_mib: what a step takes on top of the loop's state, None where it cannot be told. took:
    seconds of the first step, in which kernels are set up and graphs compiled, and of the next.
    """

    loop: Loop
    layers: Mapping[str, str]
    beyond_mib: float | None
    took: Sequence[float]

    @classmethod
    def of(cls, loop: Loop, layers: Mapping[str, str], beyond_mib: float | None) -> "Member":
        """Takes the first two steps; raises RuntimeError where they cannot be."""
        use_backends(loop.network, layers)
        readings = [stopwatch.clock(loop.device)]
        for _ in range(2):
            loop.step()
            readings.append(stopwatch.clock(loop.device))
        took = [after - before for before, after in pairwise(readings)]
        return cls(loop, layers, beyond_mib, took)

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


def names_of(layers: Mapping[str, LayerPlan]) -> dict[str, str]:
    """The name of each layer's backend."""
    return {name: layer.backend.name for name, layer in layers.items()}


def compiled_member(setting: Setting, layers: Mapping[str, str]) -> Member:
    """The network in a graph of torch.compile; RuntimeError where that cannot be made."""
    network = deepcopy(setting.network)
    use_backends(network, layers)
    network.compile()
    return Member.of(setting.loop(network), layers, None)


def timm_member(setting: Setting) -> Member:
    """The same network by timm; UserError where timm has none like it."""
    if not isinstance(setting.network, ViT):
        raise UserError("the model itself is timm's")
    if setting.batch.valid is not None:
        raise UserError("timm's VisionTransformer takes no padding; use data.resize=crop")
    network = twin(setting.network, OmegaConf.to_container(setting.config.model, resolve=True))
    return Member.of(setting.loop(network), {}, setting.peak(network, {}))
