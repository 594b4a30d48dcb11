"""Train and evaluate: the parts of a config put together, run, and reported."""

import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import LambdaCallback
from pytorch_lightning.utilities import rank_zero_only

import vitrail
from vitrail import checkpoint
from vitrail.assemble import (
    Plan,
    build_classifier,
    build_loggers,
    build_network,
    build_trainer,
    settled,
)
from vitrail.checkpoint import Checkpoint
from vitrail.data.module import ImageData
from vitrail.evaluation import measure, publish
from vitrail.model import ViT
from vitrail.next_command import next_command, pasteable, shown
from vitrail.run_receipt import watch
from vitrail.run_summary import attention_line, data_line, model_line, training_line
from vitrail.saving import BestAndLast, SelfDescription, WholeFiles
from vitrail.stopping import StopBetweenBatches
from vitrail.tracking import environment
from vitrail.tracking.loggers import Loggers, open_loggers
from vitrail.tracking.summary import show
from vitrail.training.ema import EMA
from vitrail.training.progress import Progress
from vitrail.training.throughput import Throughput

# Remarks on a start that say less than the summary. Lightning sets its own level when imported.
for library in ("pytorch_lightning", "lightning_fabric", "matplotlib"):
    logging.getLogger(library).setLevel(logging.WARNING)
# From Lightning 2.6 to torch 2.14, about themselves.
warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated")

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
    plan = Plan.of(config, training=True)
    if any(override.startswith("backend=") for override in overrides):
        plan.check_backend(config.backend)
    averaging = [] if config.ema_decay is None else [EMA(config.ema_decay)]
    data = plan.data
    classes = read_classes(config, data, resumed)
    network = build_network(config, len(classes), pretrained=resumed is None)
    if resumed is not None:
        resumed.check(network)
    if config.compile:
        network.compile()
    classifier = build_classifier(config, network, classes)
    config = settled(config, data)
    write_config(config, run_dir)
    done = 0 if resumed is None else resumed.step
    with open_loggers(
        build_loggers(config),
        run_dir,
        config=OmegaConf.to_container(config, resolve=True),
        run_id=None if resumed is None else resumed.description["wandb_id"],
        resumed_at=None if resumed is None else resumed.step,
    ) as loggers:
        validated = data.has_split("val")
        checkpoints = BestAndLast(run_dir, validated=validated)
        stopping = StopBetweenBatches()

        def summary(trainer: Trainer, *_: object) -> None:
            show(
                {
                    "data": data_line(data),
                    "model": model_line(network, plan.outline, data.image_size),
                    "attention": attention_line(plan.layers),
                    "precision": f"{plan.precision} ({plan.why_precision})",
                    "training": training_line(trainer, data.batch_size, done),
                    "run folder": shown(run_dir),
                }
            )

        trainer = build_trainer(
            config,
            precision=plan.precision,
            default_root_dir=run_dir,
            logger=loggers,
            plugins=[WholeFiles()],
            **({} if validated else {"limit_val_batches": 0}),
            callbacks=[
                LambdaCallback(on_fit_start=summary),
                Progress(),
                Throughput(),
                *averaging,
                SelfDescription(describe(config, plan, classes, loggers)),
                watch(plan, loggers, run_dir, compiled=config.compile),
                stopping,
                checkpoints,
            ],
        )
        try:
            trainer.fit(
                classifier,
                data,
                ckpt_path=None if resumed is None else resumed.path,
                weights_only=True,
            )
        except (KeyboardInterrupt, SystemExit) as stop:
            if checkpoints.last.is_file():
                say(f"stopped; go on with: {next_command('train', checkpoints.last)}")
            if stopping.asked:
                raise KeyboardInterrupt from stop
            raise
        best = checkpoints.best
        split = "test" if data.has_split("test") else "val"
        report = measure(trainer, classifier, data, best, split)
        publish(report, run_dir, loggers, split)
        say(f"checkpoint: {pasteable(best)}")
        if loggers.sync_command:
            say(f"W&B run: {loggers.sync_command}")
        say(f"evaluate it again: {next_command('eval', best)}")


def evaluate(config: DictConfig, run_dir: Path) -> None:
    """Evaluate `config.ckpt_path`, which brings its own config; `config` says where and on what."""
    saved = checkpoint.read(config.ckpt_path)
    own = OmegaConf.create(saved.description["recipe"])
    own.trainer = config.trainer
    own.deterministic = config.deterministic
    own.precision = saved.description["precision"]
    if config.data.root is not None and "root" not in own.data:
        raise ValueError(
            f"data.root={config.data.root} has no use, because the data of this checkpoint, "
            f"{own.data.dataset._target_.rpartition('.')[2]}, comes without files; leave it out"
        )
    for key, value in {
        "data.root": config.data.root,
        "data.batch_size": config.batch_size,
        "data.image_size": config.image_size,
        "backend": config.backend,
        "precision": config.precision,
    }.items():
        if value is not None:
            OmegaConf.update(own, key, value, force_add=True)
    plan = Plan.of(own, training=False)
    if config.backend is not None:
        plan.check_backend(config.backend)
    why_precision = "as in training" if config.precision is None else plan.why_precision
    if isinstance(plan.outline, ViT):  # resamples its positions as it goes; others have one size
        own.model.image_size = saved.description["image_size"]
    data = plan.data
    data.prepare_data()
    classes = saved.description["classes"]
    data.select_classes(classes)
    split = config.split or ("test" if data.has_split("test") else "val")

    def summary(*_: object) -> None:
        show(
            {
                "checkpoint": f"{pasteable(saved.path)} (epoch {saved.epoch}, step {saved.step})",
                "weights": "averaged (EMA)" if saved.averaged else "raw",
                "data": data_line(data),
                "attention": attention_line(plan.layers),
                "precision": f"{plan.precision} ({why_precision})",
                "run folder": shown(run_dir),
            }
        )

    trainer = build_trainer(
        own,
        precision=plan.precision,
        default_root_dir=run_dir,
        logger=False,
        enable_checkpointing=False,
        callbacks=[LambdaCallback(on_test_start=summary), Progress()],
    )
    network = build_network(own, len(classes), pretrained=False)
    saved.check(network)
    classifier = build_classifier(own, network, classes)
    report = measure(trainer, classifier, data, saved.path, split)
    publish(report, run_dir, Loggers([], run_id=None), split)


def read_classes(config: DictConfig, data: ImageData, resumed: Checkpoint | None) -> list[str]:
    """Fetch and list the data; the names of its classes, or those of the run that goes on.

    `config.model.num_classes` may ask for more, which are then unused; ValueError for fewer.
    """
    data.prepare_data()
    if resumed is not None:
        data.select_classes(resumed.description["classes"])
    data.setup("fit")
    wanted, classes = config.model.num_classes, data.classes
    if wanted is None or resumed is not None:
        return list(classes)
    if wanted < len(classes):
        raise ValueError(
            f"model.num_classes={wanted} is less than the {len(classes)} classes in "
            f"{data.root or type(data.dataset).__name__}; leave it null to take all"
        )
    return [*classes, *(f"unused {number}" for number in range(len(classes), wanted))]


def describe(
    config: DictConfig, plan: Plan, classes: Sequence[str], loggers: Loggers
) -> dict[str, Any]:
    """What a checkpoint says of itself, see `SelfDescription`."""
    return {
        checkpoint.KEY: vitrail.__version__,
        "config": OmegaConf.to_container(config, resolve=True),
        "recipe": OmegaConf.to_container(config, resolve=False),
        "precision": plan.precision,
        "backends": {name: layer.backend.name for name, layer in plan.layers.items()},
        "environment": environment.describe(),
        "wandb_id": loggers.run_id,
        **plan.data.description(),
        "classes": list(classes),
    }


@rank_zero_only
def write_config(config: DictConfig, run_dir: Path) -> None:
    """The resolved config, for people and for other programs."""
    run_dir.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(config, run_dir / "config.yaml", resolve=True)
