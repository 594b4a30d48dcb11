"""What a run prints: what is about to happen, which backends there are, what to do next."""

import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from omegaconf import DictConfig
from pytorch_lightning import Trainer
from pytorch_lightning.utilities import rank_zero_only
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn

from vitrail.attention import backends
from vitrail.attention.backends import AUTO, Backend, Request
from vitrail.attention.selection.layers import LayerPlan
from vitrail.data.module import ImageData
from vitrail.model import ViT
from vitrail.model.flops import forward_flops
from vitrail.run.plan import Plan

ASK = "?"  # as backend=?

say = rank_zero_only(print)


def show_facts(facts: Mapping[str, str]) -> None:
    """Print one line a fact, names aligned."""
    width = max(map(len, facts))
    for name, fact in facts.items():
        say(f"{name:<{width}}  {fact}")


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
    """The backends, in how many layers each computes, and the times behind what auto chose."""
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
    results = [result for layer in layers.values() for result in layer.gate]
    if not results:
        unproved = any(layer.backend.name != "reference" for layer in layers.values())
        return "off (gate=false)" if unproved else "nothing to prove"
    worst = max(results, key=lambda result: result.share)
    name = worst.worst
    return (
        f"passed; the worst tensor, {name}, is {worst.errors[name]:.1e} from float64 "
        f"({worst.allowed[name]:.1e} allowed)"
    )


def training_line(trainer: Trainer, batch_size: int, done: int) -> str:
    """Optimizer steps in all and done before, and how many images one step sees.

    The trainer must have the data attached: call it from a hook of fit.
    """
    steps = f"{trainer.estimated_stepping_batches:,} optimizer steps"
    before = f" of which {done:,} are done," if done else ","
    processes, batches = trainer.world_size, trainer.accumulate_grad_batches
    together = f" x {processes} processes" if processes > 1 else ""
    accumulated = f" x {batches} accumulated" if batches > 1 else ""
    return f"{steps}{before} batch {batch_size}{together}{accumulated}"


def show_backends(config: DictConfig, *, training: bool) -> None:
    """Print a row a backend: whether it can compute this config's attention here, and why not."""
    plan = Plan.asking(config, training=training)
    plan.check_backend(ASK)
    requests = [request for layer in plan.layers.values() for request in layer.requests]
    first = requests[0]
    shape = (first.batch, first.heads, first.queries, first.width)
    bias = "learned" if first.bias_grad else "fixed" if first.bias else "none"
    table = Table(
        "backend",
        "here",
        "why not, and what to know",
        title=f"attention on {first.device}, {plan.precision}: (B, h, N, d) = {shape}, "
        f"masks: {' + '.join(sorted(first.masks)) or 'none'}, bias: {bias}",
        title_justify="left",
    )
    table.add_row(
        AUTO, "yes", "measures those that can, and takes the fastest that passes the gate"
    )
    for name in backends.names():
        lacks = dict.fromkeys(lack for one in requests for lack in backends.lacks(name, one))
        remark = f"cannot {' or '.join(lacks)}" if lacks else _remark(backends.load(name), first)
        table.add_row(name, "no" if lacks else "yes", escape(remark))
    Console().print(table)


def _remark(backend: Backend, request: Request) -> str:
    by_name = f"never auto's choice: {backend.by_name_only}" if backend.by_name_only else None
    return "; ".join(filter(None, [backend.variant(request), by_name]))


def next_command(name: str, **paths: Path) -> str:
    """The call of `name` (train, eval or bench) with `key=path`, started the way this command was.

    With this process's interpreter, since a shell's own `python` may lack what is installed here.
    """
    started = Path(sys.argv[0])
    if started.suffix == ".py":
        words = [sys.orig_argv[0], str(started.with_name(f"{name}.py"))]
    else:
        program = f"vitrail-{name}"
        words = [program if shutil.which(program) else str(started.with_name(program))]
    named = (f"{key}={pasteable(path)}" for key, path in paths.items())
    return " ".join([shlex.join(words), *named])


def pasteable(path: Path) -> str:
    """A path to paste behind `key=`, quoted where it must be: for the shell and for Hydra."""
    text = shown(path)
    return text if re.fullmatch(r"[\w/.+-]+", text, re.ASCII) else shlex.quote(f'"{text}"')


def shown(path: Path) -> str:
    """A path as a person here would write it: relative when it lies below."""
    path, here = path.resolve(), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _short(number: float) -> str:
    """Three digits, and the letter of the power of 1000."""
    for letter in ("", " k", " M", " G"):
        if number < 999.5:
            return f"{number:.3g}{letter}"
        number /= 1000
    return f"{number:.3g} T"
