"""The ways to compute a step that are timed in turn, and why others are not."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property

from omegaconf import DictConfig, OmegaConf
from torch import nn

from vitrail.attention.backends import AUTO
from vitrail.attention.selection.layers import LayerPlan
from vitrail.attention.selection.requests import attention_layers
from vitrail.attention.selection.stopwatch import clock
from vitrail.bench.attention_share import attention_share
from vitrail.bench.bare_loop import (
    Batch,
    LoggerFactory,
    Training,
    infer,
    inference_pass,
    packed,
    set_backends,
    training_step,
    unpacked,
)
from vitrail.bench.memory import MIB, peak_mib
from vitrail.bench.proved import proved, refusal
from vitrail.bench.timm_twin import twin
from vitrail.errors import UserError
from vitrail.model import ViT
from vitrail.model.flops import forward_flops
from vitrail.run.plan import Plan, build_classifier, build_network, device_of
from vitrail.training.classifier import Classifier
from vitrail.training.precision import Arithmetic

TIMM, COMPILED, OWN = "timm", "compiled", "own"
CLASSES = 10  # where the config leaves their number to the data, which is not read


class Setting:
    """What the members of one mode share: model, batch and recipe, and where they compute.

    config: the command's. training: whole steps, or inference. total_steps: of the schedule.
    Raises UserError for what clashes in the config.
    """

    def __init__(self, config: DictConfig, *, training: bool, total_steps: int):
        self.config, self.training, self.total_steps = config, training, total_steps
        self.device = device_of(config.trainer.accelerator).type
        self.plan = Plan.asking(config, training=training)
        self.arithmetic = Arithmetic.of(self.plan.precision)
        classes = config.model.num_classes or CLASSES
        self.classes = [f"class {number}" for number in range(classes)]
        self.batch = Batch.drawn(
            size=self.plan.data.batch_size,
            image_size=self.plan.data.image_size,
            classes=classes,
            padded=config.data.resize == "native",
            device=self.device,
        ).in_dtype(self.arithmetic.dtype)

    @cached_property
    def network(self) -> nn.Module:
        """What all members begin from."""
        network = build_network(self.config, len(self.classes), pretrained=False)
        set_backends(network, dict.fromkeys(attention_layers(network), "reference"))
        return network

    @cached_property
    def recipe(self) -> LoggerFactory:
        classifier = self.classifier(nn.Identity())
        return LoggerFactory(
            classifier.optim,
            classifier.mixing,
            classifier.label_smoothing,
            self.config.trainer.gradient_clip_val,
        )

    @cached_property
    def flops(self) -> int:
        """Floating-point operations of a step; backward computes twice what forward does."""
        forward = forward_flops(self.plan.meta_model, self.plan.data.image_size)
        return forward * self.plan.data.batch_size * (3 if self.training else 1)

    def classifier(self, network: nn.Module) -> Classifier:
        """The network as Lightning drives it."""
        return build_classifier(self.config, network, self.classes)

    def layers(self, backend: str) -> dict[str, LayerPlan]:
        """See `proved`."""
        return proved(self.plan, backend, deterministic=self.config.deterministic)


class Loop:
    """A network on the device with all that a step needs, whatever its backends at the moment."""

    def __init__(self, network: nn.Module, setting: Setting):
        self.network, self.device = network, setting.device
        self._batch, self._arithmetic = setting.batch, setting.arithmetic
        self._training = None
        if setting.training:
            self._training = Training(
                network,
                setting.recipe,
                setting.arithmetic,
                device=setting.device,
                total_steps=setting.total_steps,
            )
        else:
            network.to(setting.device, setting.arithmetic.dtype).eval()

    def step(self) -> object:
        if self._training is not None:
            return self._training.step(self._batch)
        return infer(self.network, self._batch, self._arithmetic)

    @property
    def state_mib(self) -> float:
        """Weights, and in training gradients and what the optimizer keeps; after a step."""
        if self._training is not None:
            return self._training.state_bytes / MIB
        return sum(tensor.nbytes for tensor in self.network.state_dict().values()) / MIB


@dataclass(frozen=True)
class Member:
    """One way to compute the step.

    layers: the name of each attention layer's backend, which the network is given at each turn.
    beyond_mib: what a step takes on top of the loop's state, None where it cannot be told.
    first_s: what the first step took, in which kernels are set up and graphs compiled. second_s:
    what the next one did.
    """

    loop: Loop
    layers: Mapping[str, str]
    compiled: bool
    beyond_mib: float | None
    first_s: float
    second_s: float

    @classmethod
    def of(
        cls,
        loop: Loop,
        layers: Mapping[str, str],
        beyond_mib: float | None,
        *,
        compiled: bool = False,
    ) -> "Member":
        """Takes the first two steps; raises RuntimeError where they cannot be."""
        set_backends(loop.network, layers)
        took = []
        for _ in range(2):
            start = clock(loop.device)
            loop.step()
            took.append(clock(loop.device) - start)
        return cls(loop, layers, compiled, beyond_mib, *took)

    @property
    def backend(self) -> str:
        """Those in use, each once."""
        return " + ".join(dict.fromkeys(self.layers.values()))

    def turn(self, steps: int) -> None:
        """As many steps as it takes at a time."""
        set_backends(self.loop.network, self.layers)
        for _ in range(steps):
            self.loop.step()

    def attention_share(self) -> float | None:
        """See `attention_share`; what is named inside a graph would be compiled anew."""
        if self.compiled:
            return None
        set_backends(self.loop.network, self.layers)
        return attention_share(self.loop.network, self.loop.step, device=self.loop.device)


def chosen(layers: Mapping[str, LayerPlan]) -> dict[str, str]:
    """The name of each layer's backend."""
    return {name: layer.backend.name for name, layer in layers.items()}


def only(layers: Mapping[str, LayerPlan]) -> str:
    """The name of the one backend that all layers have; `auto` where they have several."""
    used = {*chosen(layers).values()}
    return used.pop() if len(used) == 1 else AUTO


def members_of(
    setting: Setting, backends: Mapping[str, Mapping[str, str] | None]
) -> tuple[dict[str, Member], dict[str, str]]:
    """The members of a mode by name, and the reasons of those that cannot be.

    backends: by a member's name the backends of its layers, None for that name in every layer.
    """
    loop = Loop(deepcopy(setting.network), setting)
    members, refused = {}, {}
    for name, layers in backends.items():
        if layers is None:
            deterministic = setting.config.deterministic
            if reason := refusal(setting.plan, name, deterministic=deterministic):
                refused[name] = reason
                continue
            layers = dict.fromkeys(setting.plan.layers, name)
        try:
            members[name] = Member.of(loop, layers, _beyond(setting, setting.network, layers))
        except (MemoryError, RuntimeError) as error:
            refused[name] = first_line(error)
    try:
        members[TIMM] = _timm(setting)
    except (MemoryError, RuntimeError, ValueError) as error:
        refused[TIMM] = first_line(error)
    return members, refused


def compiled(setting: Setting, layers: Mapping[str, str]) -> Member:
    """The network in a graph of torch.compile; RuntimeError where that cannot be made."""
    network = deepcopy(setting.network)
    set_backends(network, layers)
    network.compile()
    return Member.of(Loop(network, setting), layers, None, compiled=True)


def _timm(setting: Setting) -> Member:
    if not isinstance(setting.network, ViT):
        raise UserError("is the model itself, which brings its own attention")
    if setting.batch.padding is not None:
        raise UserError("timm's VisionTransformer takes no padding; use data.resize=crop")
    config = OmegaConf.to_container(setting.config.model, resolve=True)
    network = twin(setting.network, config)
    return Member.of(Loop(network, setting), {}, _beyond(setting, network, {}))


def _beyond(setting: Setting, network: nn.Module, layers: Mapping[str, str]) -> float | None:
    if setting.training:
        recipe = setting.recipe
        call = packed(training_step, network, layers, recipe, setting.arithmetic, setting.batch)
    else:
        call = packed(inference_pass, network, layers, setting.arithmetic, setting.batch)
    return peak_mib(unpacked, call, device=setting.device)


def first_line(error: Exception) -> str:
    """What a person needs of it."""
    return str(error).partition("\n")[0]
