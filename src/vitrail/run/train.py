"""Train a model, or go on with a run, and evaluate its best checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import LambdaCallback
from pytorch_lightning.utilities import rank_zero_only

from vitrail.attention.selection.layers import set_backends
from vitrail.data.module import ImageData
from vitrail.errors import UserError
from vitrail.run import checkpoint, console
from vitrail.run.callbacks import StopBetweenBatches, step_callbacks
from vitrail.run.checkpoint import BestAndLast, Checkpoint, SelfDescription, WholeFiles
from vitrail.run.console import say
from vitrail.run.evaluate import METRICS, maps_of, measure, publish
from vitrail.run.plan import Plan, build, build_classifier, build_network, build_trainer
from vitrail.startup import quiet_libraries
from vitrail.tracking.loggers import open_loggers
from vitrail.tracking.metrics_csv import read_metrics
from vitrail.training.ema import EMA


@dataclass(frozen=True)
class TrainingResult:
    """What a training came to.

    metrics: steps (optimizer steps in all), train/seconds (of all parts of a resumed run, without
    validation), train/images_per_second (the median), val/acc (the best), and of the last
    evaluation test/acc, test/loss and test/acc_top5, or val/… without a test split. What was not
    measured is left out.
    """

    folder: Path  # of everything that the run made
    best: Path | None  # the checkpoint that was evaluated; None after backend=?
    metrics: Mapping[str, float]


def train(
    config: DictConfig,
    run_dir: Path,
    *,
    overrides: Sequence[str] = (),
    choices: Mapping[str, str | None] | None = None,
) -> TrainingResult:
    """Train the model of `config`, or go on from `config.ckpt_path`; evaluate the best checkpoint.

    Can be called again in one process: everything is seeded from `config.seed`. Raises UserError
    where parts of the config clash, before any data is read, or the data do not fit.

    Args:
        config: composed from configs/train.yaml; of a resumed run only `ckpt_path` and what the
            overrides name is read, the rest is the checkpoint's.
        run_dir: the folder for everything that the run makes.
        overrides: this command's as typed, for a resumed run's own config.
        choices: this command's choice in each config group, likewise.
    """
    quiet_libraries()
    resumed, saved = None, None
    named = any(override.startswith("backend=") for override in overrides)
    if config.ckpt_path is not None:
        resumed = checkpoint.read(config.ckpt_path)
        config = resumed.continued(config, overrides, choices or {})
        saved = None if named else resumed.description["backends"]
    if config.backend == console.ASK:
        console.show_backends(config, training=True)
        return TrainingResult(run_dir, None, {})
    plan = Plan.of(config, training=True, saved=saved)
    if named:
        plan.check_backend(config.backend)
    data = plan.data
    averaging = [] if config.ema_decay is None else [EMA(config.ema_decay)]
    classes = read_classes(config, data, resumed)
    network = build_network(config, len(classes), pretrained=resumed is None)
    if resumed is not None:
        resumed.check(network)
    set_backends(network, plan.layers)
    if config.compile:
        network.compile()
    classifier = build_classifier(config, network, classes)
    config = config.copy()  # that holds in any folder
    if data.root is not None:
        config.data.root = str(data.root)  # absolute
    if config.data.classes is not None:
        config.data.classes = list(data.classes)
    run_dir.mkdir(parents=True, exist_ok=True)
    rank_zero_only(OmegaConf.save)(config, run_dir / "config.yaml", resolve=True)
    done = resumed and resumed.step
    with open_loggers(
        build(config.logger),
        run_dir,
        config=OmegaConf.to_container(config, resolve=True),
        run_id=resumed and resumed.description["wandb_id"],
        resumed_at=done,
    ) as loggers:
        validated = data.has_split("val")
        split = next((name for name in ("test", "val") if data.has_split(name)), None)
        checkpoints = BestAndLast(run_dir, validated=validated)
        stopping = StopBetweenBatches()

        def summary(trainer: Trainer, *_: object) -> None:
            facts = {
                "data": console.data_line(data),
                "model": console.model_line(network, plan.meta_model, data.image_size),
                "attention": console.attention_line(plan.layers),
                "gate": console.gate_line(plan.layers),
                "compiled": "yes" if config.compile else "no (compile=false)",
                "precision": f"{plan.precision} ({plan.why_precision})",
                "training": console.training_line(trainer, data.batch_size, done or 0),
                "run folder": console.shown(run_dir),
            }
            console.show_facts(facts)

        trainer = build_trainer(
            config,
            precision=plan.precision,
            default_root_dir=run_dir,
            logger=loggers,
            plugins=[WholeFiles()],
            **({} if validated else {"limit_val_batches": 0}),
            callbacks=[
                LambdaCallback(on_fit_start=summary),
                *averaging,
                *maps_of(data, run_dir, loggers, tested=split or "val", **config.attention_maps),
                SelfDescription(
                    config,
                    precision=plan.precision,
                    backends={name: layer.backend.name for name, layer in plan.layers.items()},
                    wandb_id=loggers.run_id,
                    **(data.description() | {"classes": classes}),
                ),
                *step_callbacks(
                    plan,
                    loggers,
                    run_dir,
                    stopping=stopping,
                    checkpoints=checkpoints,
                    compiled=config.compile,
                    from_step=done or 0,
                ),
            ],
        )
        try:
            trainer.fit(classifier, data, ckpt_path=resumed and resumed.path, weights_only=True)
        except (KeyboardInterrupt, SystemExit) as stop:
            if checkpoints.last.is_file():
                go_on = console.next_command("train", ckpt_path=checkpoints.last)
                say(f"stopped; go on with: {go_on}")
            if stopping.asked:
                raise KeyboardInterrupt from stop
            raise
        best = checkpoints.best
        metrics = training_metrics(run_dir, trainer, checkpoints)
        if split is None:
            say("there is neither a test nor a val split, so nothing was evaluated")
        else:
            report = measure(trainer, classifier, data, best, split)
            publish(report, run_dir, loggers, split)
            metrics |= {f"{split}/{name}": report[name] for name in METRICS if name in report}
        say(f"checkpoint: {console.shown(best)}")
        if loggers.sync_command:
            say(f"W&B run: {loggers.sync_command}")
        say(f"evaluate it again: {console.next_command('eval', ckpt_path=best)}")
    return TrainingResult(run_dir, best, metrics)


def training_metrics(run_dir: Path, trainer: Trainer, checkpoints: BestAndLast) -> dict[str, float]:
    """See `TrainingResult`; what metrics.csv holds is there also for a run that was finished."""
    metrics = {"steps": trainer.global_step}
    logged = read_metrics(run_dir / "metrics.csv")
    for name, pick in (("train/seconds", "max"), ("train/images_per_second", "median")):
        if name in logged and logged[name].notna().any():
            metrics[name] = float(logged[name].agg(pick))
    if checkpoints.best_model_score is not None:
        metrics["val/acc"] = float(checkpoints.best_model_score)
    return metrics


def read_classes(config: DictConfig, data: ImageData, resumed: Checkpoint | None) -> list[str]:
    """Fetch and list the data; the names of its classes, or those of the run that goes on.

    `config.model.num_classes` may ask for more, which are then unused; UserError for fewer.
    """
    data.prepare_data()
    if resumed is not None:
        data.select_classes(resumed.description["classes"])
    data.setup("fit")
    wanted, classes = config.model.num_classes, data.classes
    if wanted is None or resumed is not None:
        return list(classes)
    if wanted < len(classes):
        raise UserError(
            f"model.num_classes={wanted} is less than the {len(classes)} classes in "
            f"{data.root or type(data.dataset).__name__}; leave it null to take all"
        )
    return [*classes, *(f"unused {number}" for number in range(len(classes), wanted))]
