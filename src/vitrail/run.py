"""Train and evaluate: the parts of a config put together, run, and reported."""

import logging
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pytorch_lightning import Callback, Trainer, seed_everything
from pytorch_lightning.utilities import rank_zero_only
from pytorch_lightning.utilities.exceptions import SIGTERMException
from torch import nn

import vitrail
from vitrail import checkpoint
from vitrail.assemble import (
    LayerPlan,
    attention_dtype,
    build_classifier,
    build_data,
    build_loggers,
    build_network,
    build_trainer,
    device_of,
    outline,
    plan,
)
from vitrail.checkpoint import BestAndLast, Checkpoint, SelfDescription
from vitrail.data.module import ImageData
from vitrail.model import ViT
from vitrail.model.flops import forward_flops
from vitrail.tracking import confusion, environment
from vitrail.tracking.kernel_watch import KernelWatch, SeenKernels
from vitrail.tracking.loggers import Loggers, open_loggers
from vitrail.tracking.receipt import LayerReceipt, Receipt
from vitrail.tracking.summary import show
from vitrail.training.classifier import Classifier
from vitrail.training.ema import EMA
from vitrail.training.precision import Hardware, choose
from vitrail.training.progress import Progress
from vitrail.training.throughput import Throughput

# Lightning sets its own level when imported; its remarks on a start say less than the summary.
logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)

say = rank_zero_only(print)


def train(
    config: DictConfig,
    run_dir: Path,
    *,
    overrides: Sequence[str],
    choices: Mapping[str, str | None],
) -> None:
    """Train the model of `config`, or go on from `config.ckpt_path`; evaluate the best checkpoint.

    overrides and choices: this command's, as Hydra has them, for a resumed run's own config.
    Everything that the run makes lies in `run_dir`.
    """
    resumed = None
    if config.ckpt_path is not None:
        resumed = checkpoint.read(config.ckpt_path)
        config = resumed.continued(config, overrides, choices)
    seed_everything(config.seed, workers=True, verbose=False)
    device = device_of(config.trainer.accelerator)
    precision, why_precision = choose(config.precision, Hardware.of(device))
    data = build_data(config)
    skeleton = outline(config)
    layers = plan(
        skeleton,
        batch=data.batch_size,
        image_size=data.image_size,
        device=device,
        dtype=attention_dtype(precision),
        padded=config.data.resize == "native",
        training=True,
    )
    data.prepare_data()
    data.setup("fit")
    classes = class_names(config.model.num_classes, data)
    network = build_network(config, len(classes))
    if config.compile:
        network.compile()
    classifier = build_classifier(config, network, classes)
    resolved = OmegaConf.to_container(config, resolve=True)
    write_config(config, run_dir)
    with open_loggers(
        build_loggers(config),
        run_dir,
        config=resolved,
        run_id=None if resumed is None else resumed.description["wandb_id"],
        resumed_at=None if resumed is None else resumed.step,
    ) as loggers:
        receipt = Receipt(
            environment=environment.describe(),
            precision=precision,
            compiled=config.compile,
            layers={name: _layer_receipt(layer) for name, layer in layers.items()},
        )
        checkpoints = BestAndLast(run_dir, validated=data.has_split("val"))
        trainer = build_trainer(
            config,
            precision=precision,
            default_root_dir=run_dir,
            logger=loggers,
            callbacks=[
                Progress(),
                Throughput(),
                *([] if config.ema_decay is None else [EMA(config.ema_decay)]),
                checkpoints,
                SelfDescription(
                    {
                        checkpoint.KEY: vitrail.__version__,
                        "config": resolved,
                        "recipe": OmegaConf.to_container(config, resolve=False),
                        "precision": precision,
                        "backends": {name: layer.backend.name for name, layer in layers.items()},
                        "environment": environment.describe(),
                        "wandb_id": loggers.run_id,
                        **data.description(),
                        "classes": list(classes),
                    }
                ),
                watch(receipt, layers, loggers, run_dir, compiled=config.compile),
            ],
        )
        steps = trainer.max_steps if trainer.max_epochs == -1 else _steps(trainer, data)
        show(
            {
                "data": f"{config.data._target_.rpartition('.')[2]}: "
                + ", ".join(f"{count:,} {split}" for split, count in data.counts.items())
                + f"; {len(classes)} classes",
                "model": _model_line(skeleton, network, data.image_size),
                "attention": _attention_line(layers),
                "precision": f"{precision} ({why_precision})",
                "training": f"{steps:,} optimizer steps, "
                f"batch {data.batch_size} x {trainer.world_size}",
                "run folder": _shown(run_dir),
            }
        )
        try:
            trainer.fit(
                classifier,
                data,
                ckpt_path=None if resumed is None else resumed.path,
                weights_only=True,
            )
        except (KeyboardInterrupt, SystemExit, SIGTERMException):
            if checkpoints.last.is_file():
                say(
                    f"stopped; go on with: {_command('train')} ckpt_path={_shown(checkpoints.last)}"
                )
            raise
        best = Path(checkpoints.best_model_path or checkpoints.last)
        split = "test" if data.has_split("test") else "val"
        report = measure(trainer, classifier, data, checkpoint.read(str(best)), split)
        publish(report, run_dir, loggers, split)
        say(f"checkpoint: {_shown(best)}")
        if loggers.sync_command:
            say(f"W&B run: {loggers.sync_command}")
        say(f"evaluate it again: {_command('eval')} ckpt_path={_shown(best)}")


def evaluate(config: DictConfig, run_dir: Path) -> None:
    """Evaluate `config.ckpt_path`, which brings its own config; `config` says where and on what."""
    saved = checkpoint.read(config.ckpt_path)
    own = OmegaConf.create(saved.description["recipe"])
    own.trainer = config.trainer
    own.deterministic = config.deterministic
    own.model.pretrained = None
    for key, value in {
        "data.root": config.data.root,
        "data.batch_size": config.batch_size,
        "data.image_size": config.image_size,
        "backend": config.backend,
        "precision": config.precision,
    }.items():
        if value is not None:
            OmegaConf.update(own, key, value, force_add=True)
    seed_everything(own.seed, workers=True, verbose=False)
    device = device_of(own.trainer.accelerator)
    wanted = saved.description["precision"] if config.precision is None else config.precision
    precision, why_precision = choose(wanted, Hardware.of(device))
    data = build_data(own)
    layers = plan(
        outline(own),
        batch=data.batch_size,
        image_size=data.image_size,
        device=device,
        dtype=attention_dtype(precision),
        padded=own.data.resize == "native",
        training=False,
    )
    classes = saved.description["classes"]
    data.prepare_data()
    data.select_classes(classes)
    split = config.split or ("test" if data.has_split("test") else "val")
    network = build_network(own, len(classes))
    classifier = build_classifier(own, network, classes)
    trainer = build_trainer(
        own,
        precision=precision,
        default_root_dir=run_dir,
        logger=False,
        enable_checkpointing=False,
        callbacks=[Progress()],
    )
    report = measure(trainer, classifier, data, saved, split)
    show(
        {
            "checkpoint": f"{_shown(saved.path)} (epoch {saved.epoch}, step {saved.step})",
            "weights": "averaged (EMA)" if saved.averaged else "raw",
            "attention": _attention_line(layers),
            "precision": f"{precision} ({why_precision})",
            "run folder": _shown(run_dir),
        }
    )
    publish(report, run_dir, Loggers([], run_id=None), split)


def measure(
    trainer: Trainer, classifier: Classifier, data: ImageData, weights: Checkpoint, split: str
) -> dict[str, Any]:
    """Accuracy, loss and confusion of a checkpoint's weights over every image of a split."""
    weights.load_into(classifier.network)
    data.evaluated_split = split
    trainer.test(classifier, datamodule=data, verbose=False)
    return classifier.report("test")


@rank_zero_only
def publish(report: Mapping[str, Any], run_dir: Path, loggers: Loggers, split: str) -> None:
    """Print the figures, and leave pictures and tables in the run's folder and in its loggers."""
    figures = {name: report[name] for name in ("acc", "acc_top5", "loss") if name in report}
    classes = [row["class"] for row in report["per_class"]]
    rows = confusion.per_class(report["confusion"], classes)
    confusion.write_per_class(run_dir / "per_class.csv", rows)
    title = f"{split}: {report['acc']:.2%} of {report['count']:,} images"
    confusion.draw(run_dir / "confusion.png", report["confusion"], classes, title=title)
    loggers.show_summary({f"{split}/{name}": value for name, value in figures.items()})
    loggers.show_picture(f"{split}/confusion", run_dir / "confusion.png")
    loggers.show_table(f"{split}/per_class", rows)
    top5 = f", top-5 {report['acc_top5']:.4f}" if "acc_top5" in report else ""
    print(
        f"{split} accuracy {report['acc']:.4f}{top5}, loss {report['loss']:.6f}, "
        f"{report['count']:,} images"
    )


def class_names(wanted: int | None, data: ImageData) -> tuple[str, ...]:
    """The data's classes, and unused ones up to `wanted`; ValueError when that is too few."""
    classes = data.classes
    if wanted is None:
        return classes
    if wanted < len(classes):
        raise ValueError(
            f"model.num_classes={wanted} is less than the {len(classes)} classes in "
            f"{data.root or type(data.dataset).__name__}; leave it null to take all"
        )
    return (*classes, *(f"unused {number}" for number in range(len(classes), wanted)))


def watch(
    receipt: Receipt,
    layers: Mapping[str, LayerPlan],
    loggers: Loggers,
    run_dir: Path,
    *,
    compiled: bool,
) -> Callback:
    """Write the receipt now, and again with the kernels that the first steps are seen to call."""
    path = run_dir / "receipt.json"
    rank_zero_only(receipt.write)(path)
    if receipt.layers:
        loggers.show_table("receipt", receipt.rows())

    def record(seen: SeenKernels) -> None:
        replace(receipt, kernels=seen).write(path)
        loggers.show_table("kernels", seen.rows())

    # A compiled graph fuses the operators that the promises name, and its first step also traces.
    promises = {} if compiled else {
        layer.backend.name: layer.backend.kernels(layer.request) for layer in layers.values()
    }  # fmt: skip
    return KernelWatch(promises, record, step=1 if compiled else 0)


@rank_zero_only
def write_config(config: DictConfig, run_dir: Path) -> None:
    """The resolved config, for people and for other programs."""
    run_dir.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(config, run_dir / "config.yaml", resolve=True)


def _layer_receipt(layer: LayerPlan) -> LayerReceipt:
    name = layer.backend.name
    return LayerReceipt(layer.request, requested=name, chosen=name, why="named", rejected={})


def _steps(trainer: Trainer, data: ImageData) -> int:
    batches = len(data.train_dataloader())
    return -(-batches // trainer.accumulate_grad_batches) * (trainer.max_epochs or 1)


def _model_line(skeleton: nn.Module, network: nn.Module, image_size: tuple[int, int]) -> str:
    parameters = sum(parameter.numel() for parameter in network.parameters())
    flops = forward_flops(skeleton, image_size)
    tokens = ""
    if isinstance(network, ViT):
        grid = network.grid
        tokens = f", {grid.tokens} tokens ({grid.rows}x{grid.cols} + {grid.prefix})"
    size = f"{parameters / 1e6:.2f} M parameters, {flops / 1e9:.3f} GFLOPs an image"
    return f"{type(network).__name__}, {size}{tokens}"


def _attention_line(layers: Mapping[str, LayerPlan]) -> str:
    if not layers:
        return "the model's own (see kernels in receipt.json)"
    names = [layer.backend.name for layer in layers.values()]
    return ", ".join(f"{name} in {names.count(name)} layers" for name in dict.fromkeys(names))


def _shown(path: Path) -> str:
    """A path to paste behind `key=`: relative when it lies below, quoted when it must be."""
    path = path.resolve()
    here = Path.cwd()
    text = str(path.relative_to(here) if path.is_relative_to(here) else path)
    return text if re.fullmatch(r"[\w/.+-]+", text) else f"\"'{text}'\""


def _command(name: str) -> str:
    return f"python {name}.py" if sys.argv[0].endswith(".py") else f"vitrail-{name}"
