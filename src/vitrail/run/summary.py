"""What a run is about to do, in lines that the start of training and of evaluation print."""

from collections.abc import Mapping

from pytorch_lightning import Trainer
from torch import nn

from vitrail.attention.selection.layers import LayerPlan
from vitrail.data.module import ImageData
from vitrail.model import ViT
from vitrail.model.flops import forward_flops


def data_line(data: ImageData) -> str:
    """Where the images come from, and how many there are in each split."""
    splits = ", ".join(f"{count:,} {split}" for split, count in data.counts.items())
    return f"{type(data.dataset).__name__}: {splits}; {len(data.classes)} classes"


def model_line(network: nn.Module, meta_model: nn.Module, image_size: tuple[int, int]) -> str:
    """Size and cost of a model; `meta_model` is the same on meta, where a pass is free."""
    parameters = sum(parameter.numel() for parameter in network.parameters())
    flops = forward_flops(meta_model, image_size)
    tokens = ""
    if isinstance(network, ViT):
        grid = network.grid
        prefix = f" + {grid.prefix}" if grid.prefix else ""
        tokens = f", {grid.tokens} tokens ({grid.rows}x{grid.cols}{prefix})"
    size = f"{_short(parameters)} parameters, {_short(flops)} FLOPs an image"
    return f"{type(network).__name__}, {size}{tokens}"


def attention_line(layers: Mapping[str, LayerPlan]) -> str:
    """The backends, in how many layers each computes, the times behind it, and their proof."""
    if not layers:
        return "the model's own (see kernels in receipt.json)"
    names = [layer.backend.name for layer in layers.values()]
    chosen = {
        layer.backend.name: f" (auto: {layer.why})"
        for layer in reversed(layers.values())  # the first layer with a backend tells its times
        if layer.requested != layer.backend.name
    }
    return ", ".join(
        f"{name} in {names.count(name)} layer{'s' * (names.count(name) > 1)}{chosen.get(name, '')}"
        for name in dict.fromkeys(names)
    )


def gate_line(layers: Mapping[str, LayerPlan]) -> str:
    """How near to float64 the backends come, told by the tensor that comes nearest to the limit."""
    verdicts = [verdict for layer in layers.values() for verdict in layer.gate]
    if not verdicts:
        return "nothing to prove" if all_reference(layers) else "off (gate=false)"
    worst = max(verdicts, key=lambda verdict: verdict.share)
    name = worst.worst
    return (
        f"passed; the worst tensor, {name}, is {worst.errors[name]:.1e} from float64 "
        f"({worst.allowed[name]:.1e} allowed)"
    )


def all_reference(layers: Mapping[str, LayerPlan]) -> bool:
    """Whether no layer has a backend that needs a proof."""
    return all(layer.backend.name == "reference" for layer in layers.values())


def training_line(trainer: Trainer, batch_size: int, done: int) -> str:
    """Optimizer steps in all and done before, and how many images one step sees.

    The trainer must have the data attached: call it from a hook of fit.
    """
    steps = f"{trainer.estimated_stepping_batches:,} optimizer steps"
    before = f" of which {done:,} are done," if done else ","
    batch = f"batch {batch_size}"
    for factor, what in (
        (trainer.world_size, "processes"),
        (trainer.accumulate_grad_batches, "accumulated"),
    ):
        batch += f" x {factor} {what}" if factor > 1 else ""
    return f"{steps}{before} {batch}"


def _short(number: float) -> str:
    """Three digits, and the letter of the power of 1000."""
    letters = ["", " k", " M", " G", " T"]
    while number >= 999.5 and len(letters) > 1:
        number /= 1000
        letters.pop(0)
    return f"{number:.3g}{letters[0]}"
