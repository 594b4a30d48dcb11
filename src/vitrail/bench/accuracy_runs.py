"""`bench=accuracy`: what training with each backend comes to, over seeds and backends."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path

import pandas as pd
import torch
from omegaconf import DictConfig, OmegaConf

from vitrail.attention import backends
from vitrail.attention.backends import AUTO, Refused
from vitrail.attention.selection.gate import FailedGate
from vitrail.bench.device import reset_peak
from vitrail.bench.harness import PLACES, Summary, check_one_device
from vitrail.bench.report import Chart, Row
from vitrail.bench.statistics import mean_interval, share_interval, verdict
from vitrail.configuration import check_seed
from vitrail.errors import UserError
from vitrail.run.evaluate import EvaluationReport, evaluate_checkpoint
from vitrail.run.plan import Plan
from vitrail.run.train import TrainingResult, train
from vitrail.startup import CHECKPOINTS
from vitrail.tracking.metrics_csv import read_metrics


@dataclass(frozen=True, kw_only=True)
class AccuracyBench:
    """Trains the config's experiment by each backend with each seed, and asks the checkpoints.

    A run lies in `runs/` of the results' folder, as train.py would have made it; one that was
    stopped goes on from its last checkpoint. The best weights are then evaluated on the test images
    (val where there is no test) as they were trained, and by every other backend that may. A
    backend that cannot train or evaluate the model, or fails its gate, becomes a row with the
    reason. The keys are described in configs/bench/accuracy.yaml. Raises UserError for what cannot
    be measured, before anything is.
    """

    config: DictConfig
    folder: Path
    backends: Sequence[str]
    seeds: Sequence[int]
    target: float
    baseline: str | None

    keys = ("evaluated_with", "trained_with", "seed")
    columns = (
        "accuracy_percent", "loss", "drift_relative", "changed_predictions", "train_s",
        "to_target_s", "images_per_second", "peak_mib",
    )  # fmt: skip

    def __post_init__(self):
        check_one_device(self.config)
        for name in ("backends", "seeds"):
            values = getattr(self, name)
            if not values or len({*values}) < len(values):
                raise UserError(f"bench.{name} must name one or more, each once, got {values}")
        for name in self.backends:
            if name != AUTO:
                backends.load(name)  # raises for an unknown name, with those that there are
        for seed in self.seeds:
            check_seed(seed)
        if not 0 < self.target <= 1:
            raise UserError(f"bench.target must be in (0, 1], got {self.target}")
        if self.baseline not in (None, *self.backends):
            raise UserError(f"bench.baseline takes {', '.join(self.backends)}, got {self.baseline}")
        Plan.asking(self.config, training=True).check_backend(self.backends[0])

    def cells(self) -> Sequence[str]:
        """A run each; all backends with one seed before any with the next, so that none is late."""
        return [
            f"trained with {name}, seed {seed}" for seed in self.seeds for name in self.backends
        ]

    def measure(self, cell: str) -> list[Row]:
        """A row a backend that evaluates: as trained first."""
        *_, name, _, seed = cell.replace(",", "").split()
        keys, rows, first = {"trained_with": name, "seed": int(seed)}, [], None
        for other in (name, *(other for other in backends.names() if other != name)):
            try:
                if first is None:
                    result = self._train(name, int(seed))
                    first = report = evaluate_checkpoint(result.best)
                    figures = self._training_figures(result, report)
                else:
                    report = evaluate_checkpoint(result.best, backend=other)
                    figures = _drift(report, first)
            except (Refused, FailedGate) as refused:
                rows.append({"evaluated_with": other, **keys, "refused": str(refused)})
                if first is None:
                    break
            else:
                figures = {**_answer(report), **figures, "refused": ""}
                rows.append({"evaluated_with": other, **keys, **figures})
        return rows

    def summary(self, rows: pd.DataFrame) -> Summary:
        """Means over seeds by backend, and the differences to the baseline, paired by seed."""
        own = rows[rows.evaluated_with == rows.trained_with].set_index("seed")
        runs = dict(list(own.groupby("trained_with", sort=False)))
        baseline = self.baseline if self.baseline in runs else next(iter(runs), None)
        table = pd.DataFrame([_compared(name, runs, baseline) for name in runs])
        charts = [
            Chart(f"Accuracy and {words}", table, x, "accuracy_percent", "ran", size="peak_mib")
            for words, x in (("speed", "images_per_second"), ("time", "train_s"))
        ]
        return {"Accuracy over seeds": table}, charts

    def _train(self, backend: str, seed: int) -> TrainingResult:
        folder = self.folder / "runs" / f"{backend}-seed{seed}"
        config = self.config.copy()
        OmegaConf.set_struct(config, False)
        for key in ("bench", *PLACES):  # what train.py does not know
            config.pop(key, None)
        # What else follows from them in the YAML, named: a config that was read again is resolved.
        own = {"backend": backend, "model.backend": backend, "seed": seed, "data.seed": seed}
        for key, value in {**own, "gate": True, "logger": {}}.items():
            if OmegaConf.select(config, key) is not None:
                OmegaConf.update(config, key, value, merge=False)
        last = folder / CHECKPOINTS / "last.ckpt"
        if last.is_file():
            config.ckpt_path = str(last)
        elif folder.exists():
            shutil.rmtree(folder)  # of a run that came to no checkpoint
        reset_peak()
        return train(config, folder)

    def _training_figures(self, result: TrainingResult, report: EvaluationReport) -> Row:
        """to_target_s: of training until the accuracy on val was the target, None if it never was.

        peak_mib: of the whole process, on CUDA of what torch allocated.
        """
        columns = ["step", "val/acc", "train/seconds", "train/peak_mib"]
        metrics = read_metrics(result.folder / "metrics.csv").reindex(columns=columns)
        by_step = metrics.groupby("step").max()
        seconds = by_step["train/seconds"][by_step["val/acc"] >= self.target].min()
        peak = metrics["train/peak_mib"].max()
        return {
            "train_s": result.metrics.get("train/seconds"),
            "to_target_s": None if pd.isna(seconds) else float(seconds),
            "best_val_accuracy": result.metrics.get("val/acc"),
            "best_epoch": report.epoch + 1,
            "images_per_second": result.metrics.get("train/images_per_second"),
            "peak_mib": None if pd.isna(peak) else float(peak),
        }


def _answer(report: EvaluationReport) -> Row:
    """How right an evaluation was, with the interval that so many images allow."""
    used = dict.fromkeys(layer.backend.name for layer in report.layers.values())
    share = share_interval(round(report.acc * report.count), report.count)
    return {
        "layers": " + ".join(used),
        "split": report.split,
        "images": report.count,
        **share.scaled(100).columns("accuracy_percent"),
        "loss": report.loss,
    }


def _drift(report: EvaluationReport, first: EvaluationReport) -> Row:
    """How far the logits are from those as trained, and how many predictions are others.

    drift_largest: of all differences. drift_relative: the L2 norm of the difference over that of
    the logits as trained.
    """
    logits = first.logits.double()
    difference = report.logits.double() - logits
    changed = report.logits.argmax(1) != first.logits.argmax(1)
    return {
        "drift_largest": difference.abs().max().item(),
        "drift_relative": (difference.norm() / torch.linalg.norm(logits)).item(),
        "changed_predictions": int(changed.sum()),
    }


def _compared(name: str, runs: Mapping[str, pd.DataFrame], baseline: str) -> Row:
    """One backend's row of the summary.

    Images are the same for every seed, so no number of seeds makes an interval narrower than they
    allow: the error of a share, and for a difference that of two independent models.
    """
    own = runs[name]
    accuracy, images = own.accuracy_percent.astype(float), int(own.images.iloc[0])
    layers = " / ".join(own.layers.unique())
    row = {"trained_with": name, "ran": name if layers == name else f"{name}: {layers}"}
    row |= {"seeds": len(own), "images": images, "baseline": baseline}
    row |= own.filter(regex="^accuracy_percent").iloc[0].to_dict()  # of one seed
    if len(own) > 1:
        mean, _ = mean_interval(accuracy.tolist(), min_error=_error_percent(accuracy, images))
        within = replace(mean, low=max(0.0, mean.low), high=min(100.0, mean.high))
        row |= within.columns("accuracy_percent")
    figures = ["train_s", "to_target_s", "images_per_second", "peak_mib"]
    row |= own.reindex(columns=figures).mean(skipna=False).to_dict()
    other = runs[baseline].accuracy_percent.astype(float)
    pairs = (accuracy - other).dropna()
    if name != baseline and len(pairs) > 1:
        error = sqrt(2 / len(pairs)) * _error_percent(pd.concat([accuracy, other]), images)
        interval, detectable = mean_interval(pairs.tolist(), min_error=error)
        row |= {**interval.columns("difference_points"), "detectable_difference_points": detectable}
        row["verdict"] = verdict(interval, "lower", "higher", even=0.0)
    return row


def _error_percent(accuracy: pd.Series, images: int) -> float:
    """The standard error of a mean accuracy on so many images."""
    share = accuracy.mean() / 100
    return 100 * sqrt(share * (1 - share) / images)
