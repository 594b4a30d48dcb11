"""The figures of a checkpoint on a split: measured, printed, and kept as files."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning import Trainer
from pytorch_lightning.utilities import rank_zero_only

from vitrail.data.module import ImageData
from vitrail.tracking import confusion
from vitrail.tracking.loggers import Loggers
from vitrail.training.classifier import Classifier

FIGURES = ("acc", "acc_top5", "loss")  # of a report; acc_top5 where there are more than 5 classes


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
    """Print the figures, and leave pictures and tables in the run's folder and in its loggers."""
    figures = {name: report[name] for name in FIGURES if name in report}
    classes = report["classes"]
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
