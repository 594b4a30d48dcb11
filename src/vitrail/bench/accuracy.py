"""What training with each backend comes to: the same experiment, several seeds, every backend."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from vitrail.attention import backends
from vitrail.attention.backends import Refused
from vitrail.attention.selection.gate import FailedGate
from vitrail.attention.selection.layers import LayerPlan
from vitrail.bench.accuracy_findings import findings
from vitrail.bench.evaluation import Answers, Evaluation
from vitrail.bench.intervals import share_interval
from vitrail.bench.measurement import Cell, Context, Findings, Row, Value
from vitrail.bench.one_device import check_one_device
from vitrail.bench.seed_run import SeedRun
from vitrail.configuration import check_seed
from vitrail.errors import UserError
from vitrail.run.plan import Plan

FIGURES = (
    "layers", "split", "images", "accuracy", "accuracy_low", "accuracy_high", "loss",
    "drift_largest", "drift_relative", "changed_predictions", "train_s", "to_target_s",
    "best_val_accuracy", "best_epoch", "images_per_second",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AccuracyBench:
    """Trains the config's experiment by each backend with each seed, and asks the checkpoints.

    A run lies in `runs/` of the results' folder, as train.py would have made it. One that has
    finished is not repeated, one that was stopped goes on from its last checkpoint. The best
    weights are then evaluated on the test images (val where there is no test) as they were trained,
    and by every other backend that may.

    backends: names that are trained with, `auto` among them. seeds: of model, order and
    augmentation; the same for every backend, so that runs compare by pairs. target: the accuracy on
    val that the time to is told.

    A backend that cannot train or evaluate the model, or fails its gate, becomes a row with the
    reason. Raises UserError for what cannot be measured at all.
    """

    context: Context
    backends: Sequence[str]
    seeds: Sequence[int]
    target: float

    keys = ("trained_with", "seed", "evaluated_with")
    columns = (
        "trained_with", "seed", "evaluated_with", "accuracy", "drift_relative",
        "changed_predictions", "train_s", "to_target_s", "images_per_second",
    )  # fmt: skip

    def __post_init__(self):
        config = self.context.config
        check_one_device(config)
        for name in ("backends", "seeds"):
            values = getattr(self, name)
            if not values or len({*values}) < len(values):
                raise UserError(f"bench.{name}={values} must name one or more, each once")
        for name in self.backends:
            if name not in backends.names():
                backends.load(name)
        for seed in self.seeds:
            check_seed(seed)
        if not 0 < self.target <= 1:
            raise UserError(f"bench.target={self.target} is no accuracy; use above 0 and up to 1")

        Plan.asking(config, training=True).check_backend(self.backends[0])

    def cells(self) -> Sequence[Cell]:
        """A run each; all backends with one seed before any with the next, so that none is late."""
        return [
            Cell(f"{name}, seed {seed}", f"trained with {name}, seed {seed}")
            for seed, name in product(self.seeds, self.backends)
        ]

    def measure(self, cell: Cell) -> list[Row]:
        """A row a backend that evaluates: as trained first, refused ones last."""
        for seed, name in product(self.seeds, self.backends):
            if cell.key == f"{name}, seed {seed}":
                return self._measure(name, seed)
        raise KeyError(cell.key)

    def findings(self, rows: Sequence[Row]) -> Findings:
        return findings(rows, self.target)

    def _measure(self, name: str, seed: int) -> list[Row]:
        folder = self.context.folder / "runs" / f"{name}-seed{seed}"
        run = SeedRun(self.context.config, folder, backend=name, seed=seed)
        keys = {"trained_with": name, "seed": seed}
        try:
            run.finish()
        except (Refused, FailedGate) as refused:
            return [_row(keys, name, refused=str(refused))]
        evaluation = Evaluation(run.best)
        as_trained = evaluation.layers(name)
        first = evaluation.answers(as_trained)
        rows = [
            _row(
                keys,
                name,
                **_answered(first, evaluation, as_trained),
                **self._trained(run, evaluation),
            )
        ]
        refused = []
        for other in backends.names():
            if other == name:
                continue
            if reason := evaluation.refusal(other):
                refused.append(_row(keys, other, refused=reason))
                continue
            layers = evaluation.layers(other)
            answers = evaluation.answers(layers)
            told = _answered(answers, evaluation, layers)
            rows.append(_row(keys, other, **told, **answers.drift(first)))
        return rows + refused

    def _trained(self, run: SeedRun, evaluation: Evaluation) -> Row:
        """What training took and came to."""
        moments = run.moments()
        accuracies = [moment.val_acc for moment in moments if moment.val_acc is not None]
        return {
            "train_s": moments[-1].seconds if moments else None,
            "to_target_s": next(
                (m.seconds for m in moments if m.val_acc is not None and m.val_acc >= self.target),
                None,
            ),
            "best_val_accuracy": max(accuracies, default=None),
            "best_epoch": evaluation.epoch,
            "images_per_second": run.images_per_second(),
        }


def _answered(answers: Answers, evaluation: Evaluation, layers: Mapping[str, LayerPlan]) -> Row:
    """How right an evaluation was, with the interval that so many images allow."""
    share = share_interval(answers.correct, len(answers.labels))
    return {
        "layers": " + ".join(dict.fromkeys(layer.backend.name for layer in layers.values())),
        "split": evaluation.split,
        "images": len(answers.labels),
        "accuracy": share.value,
        "accuracy_low": share.low,
        "accuracy_high": share.high,
        "loss": answers.loss,
    }


def _row(keys: Row, evaluated_with: str, *, refused: str = "", **figures: Value) -> Row:
    return {
        **keys,
        "evaluated_with": evaluated_with,
        **{column: figures.get(column) for column in FIGURES},
        "refused": refused,
    }
