"""What a run does at every training step besides the step: the same in train.py and bench=step."""

from pathlib import Path

from pytorch_lightning import Callback

from vitrail.run.assemble import Plan
from vitrail.run.receipt import watch
from vitrail.run.saving import BestAndLast
from vitrail.run.stopping import StopBetweenBatches
from vitrail.tracking.loggers import Loggers
from vitrail.training.progress import PeakMemory, Progress, Throughput


def around_steps(
    plan: Plan,
    loggers: Loggers,
    folder: Path,
    *,
    stopping: StopBetweenBatches,
    checkpoints: BestAndLast,
    compiled: bool,
    from_step: int,
) -> list[Callback]:
    """The callbacks with a hook inside the loop, but for EMA, which a loop of torch would have too.

    compiled, from_step: see `watch`.
    """
    return [
        Progress(),
        Throughput(),
        PeakMemory(),
        watch(plan, loggers, folder, compiled=compiled, from_step=from_step),
        stopping,
        checkpoints,
    ]
