"""Evaluate a checkpoint with the config that it brings, here and on what a person says."""

from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.callbacks import LambdaCallback

from vitrail.attention.selection.layers import set_backends
from vitrail.errors import UserError
from vitrail.model import ViT
from vitrail.run import checkpoint
from vitrail.run.assemble import Plan, build_classifier, build_network, build_trainer
from vitrail.run.backend_table import ASK, show_backends
from vitrail.run.figures import measure, publish
from vitrail.run.next_command import pasteable, shown
from vitrail.run.quiet import quiet
from vitrail.run.summary import attention_line, data_line
from vitrail.tracking.attention_maps import AttentionMaps
from vitrail.tracking.loggers import Loggers
from vitrail.tracking.summary import show
from vitrail.training.progress import Progress


def evaluate(config: DictConfig, run_dir: Path) -> None:
    """Evaluate `config.ckpt_path`, which brings its own config; `config` says where and on what."""
    quiet()
    saved = checkpoint.read(config.ckpt_path)
    own = OmegaConf.create(saved.description["recipe"])
    own.trainer = config.trainer
    own.deterministic = config.deterministic
    own.precision = saved.description["precision"]
    if config.data.root is not None and "root" not in own.data:
        raise UserError(
            f"data.root={config.data.root} has no use, because the data of this checkpoint, "
            f"{own.data.dataset._target_.rpartition('.')[2]}, comes without files; leave it out"
        )
    for key, value in {
        "data.root": config.data.root,
        "data.classes": config.data.classes,
        "data.batch_size": config.batch_size,
        "data.image_size": config.image_size,
        "backend": config.backend,
        "precision": config.precision,
    }.items():
        if value is not None:
            OmegaConf.update(own, key, value, force_add=True)
    if config.backend == ASK:
        show_backends(own, training=False)
        return
    saved_backends = None if config.backend is not None else saved.description["backends"]
    plan = Plan.of(own, training=False, saved=saved_backends)
    if config.backend is not None:
        plan.check_backend(config.backend)
    why_precision = "as in training" if config.precision is None else plan.why_precision
    if isinstance(plan.meta_model, ViT):  # resamples its positions as it goes; others have one size
        own.model.image_size = saved.description["image_size"]
    data = plan.data
    data.prepare_data()
    classes = saved.description["classes"]
    data.select_classes(classes)
    split = config.split or ("test" if data.has_split("test") else "val")
    whole = data.has_split("all") and config.split is None  # a folder that comes without splits

    def summary(*_: object) -> None:
        show(
            {
                "checkpoint": f"{pasteable(saved.path)} (epoch {saved.epoch}, step {saved.step})",
                "weights": "averaged (EMA)" if saved.averaged else "raw",
                "data": data_line(data),
                "split": split + ", held out of this folder; split=all takes it whole" * whole,
                "attention": attention_line(plan.layers),
                "precision": f"{plan.precision} ({why_precision})",
                "run folder": shown(run_dir),
            }
        )

    loggers = Loggers([], run_id=None)
    pictures = [] if config.maps is None else [
        AttentionMaps(
            images=config.maps,
            every_n_epochs=1,
            folder=run_dir,
            tested=split,
            mean=data.mean,
            std=data.std,
            loggers=loggers,
        )
    ]  # fmt: skip
    trainer = build_trainer(
        own,
        precision=plan.precision,
        default_root_dir=run_dir,
        logger=False,
        enable_checkpointing=False,
        callbacks=[LambdaCallback(on_test_start=summary), Progress(), *pictures],
    )
    network = build_network(own, len(classes), pretrained=False)
    saved.check(network)
    set_backends(network, plan.layers)
    classifier = build_classifier(own, network, classes)
    report = measure(trainer, classifier, data, saved.path, split)
    publish(report, run_dir, loggers, split)
