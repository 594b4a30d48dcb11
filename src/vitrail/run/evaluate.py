"""Evaluate a checkpoint with the config that it brings; measure and publish what it comes to."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import LambdaCallback
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor

from vitrail.attention.selection.layers import LayerPlan, set_backends
from vitrail.data.module import ImageData
from vitrail.errors import UserError
from vitrail.model import ViT
from vitrail.run import checkpoint, console
from vitrail.run.checkpoint import Checkpoint
from vitrail.run.plan import Plan, build_classifier, build_network, build_trainer
from vitrail.startup import quiet_libraries
from vitrail.tracking import confusion
from vitrail.tracking.atomic import write_text
from vitrail.tracking.attention_maps import AttentionMaps
from vitrail.tracking.loggers import Loggers
from vitrail.training.classifier import Classifier
from vitrail.training.progress import Progress

METRICS = ("acc", "acc_top5", "loss")  # of a report; acc_top5 where there are more than 5 classes


@dataclass(frozen=True)
class EvaluationReport:
    """What an evaluation found: `Classifier.report`, and where it comes from."""

    split: str
    epoch: int  # that the weights are of, from 0
    layers: Mapping[str, LayerPlan]  # by name; empty for a model that brings its own attention
    logits: Tensor  # float32 (count, classes) on the CPU, in the data's order
    labels: Tensor  # int64 (count,), likewise
    classes: Sequence[str]
    acc: float
    loss: float  # plain cross-entropy
    count: int
    confusion: Tensor  # int64 (classes, classes), true x predicted
    acc_top5: float | None = None  # None where there are no more than 5 classes


def evaluate(config: DictConfig, run_dir: Path) -> None:
    """Evaluate `config.ckpt_path`, which brings its own config; `config` says where and on what."""
    quiet_libraries()
    saved = checkpoint.read(config.ckpt_path)
    own = own_config(saved)
    own.trainer, own.deterministic = config.trainer, config.deterministic
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
        "precision": config.precision,
    }.items():
        if value is not None:
            OmegaConf.update(own, key, value, force_add=True)
    if config.backend == console.ASK:
        console.show_backends(own, training=False)
        return
    evaluation = Evaluation(saved, own, backend=config.backend, split=config.split)
    data, plan, split = evaluation.data, evaluation.plan, evaluation.split
    whole = data.has_split("all") and config.split is None  # a folder that comes without splits

    def summary(*_: object) -> None:
        place = console.pasteable(saved.path)
        why_precision = "as in training" if config.precision is None else plan.why_precision
        facts = {
            "checkpoint": f"{place} (epoch {saved.epoch}, step {saved.step})",
            "weights": "averaged (EMA)" if saved.averaged else "raw",
            "data": console.data_line(data),
            "split": split + ", held out of this folder; split=all takes it whole" * whole,
            "attention": console.attention_line(plan.layers),
            "precision": f"{plan.precision} ({why_precision})",
            "run folder": console.shown(run_dir),
        }
        console.show_facts(facts)

    loggers = Loggers([], run_id=None)
    maps = maps_of(data, run_dir, loggers, tested=split, images=config.maps, every_n_epochs=1)
    report = evaluation.run(
        [LambdaCallback(on_test_start=summary), Progress(), *maps],
        enable_progress_bar=True,
        default_root_dir=run_dir,
    )
    publish(report, run_dir, loggers, split)


def evaluate_checkpoint(path: Path | str, *, backend: str | None = None) -> EvaluationReport:
    """Evaluate a checkpoint as eval.py does, without a word on the screen and without files.

    backend: of every attention layer, None for those that training had; proved first, at the
    shapes of the evaluation. Raises UserError, also as Refused or FailedGate, where the checkpoint
    cannot be read, does not fit its model or may not be computed so here.
    """
    quiet_libraries()
    saved = checkpoint.read(str(path))
    evaluation = Evaluation(saved, own_config(saved), backend=backend, gate=True)
    kept = KeptLogits()
    report = evaluation.run([kept], enable_progress_bar=False)
    answers = torch.cat(kept.logits), torch.cat(kept.labels)
    layers = evaluation.plan.layers
    return EvaluationReport(evaluation.split, saved.epoch, layers, *answers, **report)


def own_config(saved: Checkpoint) -> DictConfig:
    """The config of a checkpoint, with the precision that its training came to."""
    config = OmegaConf.create(saved.description["unresolved_config"])
    config.precision = saved.description["precision"]
    return config


class KeptLogits(Callback):
    """Keeps what the classifier answers for each image of a test on one process, on the CPU."""

    def __init__(self):
        self.logits: list[Tensor] = []  # (B, classes) each
        self.labels: list[Tensor] = []  # (B,) each

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pl_module.register_forward_hook(lambda _module, _given, out: self.logits.append(out.cpu()))

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, _: Any, batch: Any, *at: int
    ) -> None:
        self.labels.append(batch[1].cpu())


class Evaluation:
    """The model, the data and the backends of a checkpoint, ready to be evaluated.

    config: the checkpoint's own, with what the evaluation changes. backend: a name for all layers,
    or None for those that training had. split: None for test, or else val.
    """

    def __init__(
        self,
        saved: Checkpoint,
        config: DictConfig,
        *,
        backend: str | None,
        split: str | None = None,
        gate: bool = False,
    ):
        self._path, self._config = saved.path, config
        config.compile, config.gate = False, gate
        config.backend = config.backend if backend is None else backend
        remembered = saved.description["backends"] if backend is None else None
        self.plan = Plan.of(config, training=False, saved=remembered)
        if backend is not None:
            self.plan.check_backend(backend)
        if isinstance(self.plan.meta_model, ViT):  # resamples its positions; others have one size
            config.model.image_size = saved.description["image_size"]
        self.data = self.plan.data
        self.data.prepare_data()
        classes = saved.description["classes"]
        self.data.select_classes(classes)
        self.split = split or ("test" if self.data.has_split("test") else "val")
        network = build_network(config, len(classes), pretrained=False)
        saved.check(network)
        set_backends(network, self.plan.layers)
        self.classifier = build_classifier(config, network, classes)

    def run(self, callbacks: Sequence[Callback], **trainer: Any) -> dict[str, Any]:
        """`Classifier.report` of the split; `trainer` is what the Trainer is built with besides."""
        parts = {"logger": False, "enable_checkpointing": False, "callbacks": [*callbacks]}
        built = build_trainer(self._config, precision=self.plan.precision, **parts, **trainer)
        return measure(built, self.classifier, self.data, self._path, self.split)


def maps_of(
    data: ImageData, run_dir: Path, loggers: Loggers, *, images: int | None, **when: Any
) -> list[AttentionMaps]:
    """The callback that draws where the model looks, none where no images are asked for."""
    shown = {"folder": run_dir, "mean": data.mean, "std": data.std, "loggers": loggers}
    return [] if images is None else [AttentionMaps(images=images, **when, **shown)]


def measure(
    trainer: Trainer, classifier: Classifier, data: ImageData, path: Path, split: str
) -> dict[str, Any]:
    """Accuracy, loss and confusion of a checkpoint's weights over every image of a split.

    The weights must fit, see `Checkpoint.check`; the averaged ones are taken where there are any.
    """
    data.evaluated_split = split
    with warnings.catch_warnings():
        # Those of training, which an evaluation has no use for.
        warnings.filterwarnings("ignore", "Be aware that when using `ckpt_path`, callbacks")
        trainer.test(classifier, datamodule=data, ckpt_path=path, weights_only=True, verbose=False)
    return classifier.report("test")


@rank_zero_only
def publish(report: Mapping[str, Any], run_dir: Path, loggers: Loggers, split: str) -> None:
    """Print the evaluation report; its picture and its table go to the folder and the loggers."""
    summary = {f"{split}/{name}": report[name] for name in METRICS if name in report}
    classes = report["classes"]
    table = confusion.per_class(report["confusion"], classes)
    write_text(run_dir / "per_class.csv", table.to_csv(index=False))
    title = f"{split}: {report['acc']:.2%} of {report['count']:,} images"
    confusion.draw(run_dir / "confusion.png", report["confusion"], classes, title=title)
    loggers.show_summary(summary)
    loggers.show_picture(f"{split}/confusion", run_dir / "confusion.png")
    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    loggers.show_table(f"{split}/per_class", rows)
    top5 = f", top-5 {report['acc_top5']:.4f}" if "acc_top5" in report else ""
    print(
        f"{split} accuracy {report['acc']:.4f}{top5}, loss {report['loss']:.6f}, "
        f"{report['count']:,} images"
    )
