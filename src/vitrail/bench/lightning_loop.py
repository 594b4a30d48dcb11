"""Training steps as Lightning's Trainer drives them, in turn with those of others."""

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path

from omegaconf import DictConfig

from vitrail.attention.selection import stopwatch
from vitrail.attention.selection.stopwatch import Times
from vitrail.bench.bare_loop import Batch
from vitrail.run.callbacks import StopBetweenBatches, step_callbacks
from vitrail.run.checkpoint import BestAndLast, WholeFiles
from vitrail.run.plan import Plan, build_trainer
from vitrail.tracking.loggers import open_loggers
from vitrail.training.classifier import Classifier

LIGHTNING = "lightning"


class Turns:
    """What a Trainer takes for its loader; between its steps the others have their turns.

    Each round, the others are called once and timed, then the Trainer is given `steps` batches. Its
    turn lasts until it asks for the batch after them, so all that it does around a step counts.
    times: seconds of each by name, Lightning's under `lightning`, without the warm-up round.
    """

    def __init__(
        self,
        others: Mapping[str, Callable[[], object]],
        batch: Batch,
        *,
        steps: int,
        device: str,
        rounds: int,
        clock: Callable[[str], float] = stopwatch.clock,
    ):
        self.times: dict[str, Times] = {}
        self._others = others
        self._batch = (batch.images, batch.labels, batch.valid)
        self._steps, self._rounds = steps, rounds
        self._device, self._clock = device, clock

    def __len__(self) -> int:
        """One more than are counted: asked for that one, Lightning has finished those before."""
        return self._steps * (1 + self._rounds) + 1

    def __iter__(self) -> Iterator[tuple]:
        found: dict[str, list[float]] = {name: [] for name in (*self._others, LIGHTNING)}
        once = {"device": self._device, "rounds": 1, "warm_up": 0, "clock": self._clock}
        for number in range(self._rounds + 1):
            passed = stopwatch.interleave(self._others, **once)
            start = self._clock(self._device)
            for _ in range(self._steps):
                yield self._batch
            passed[LIGHTNING] = Times((self._clock(self._device) - start,))
            if number > 0:  # the first round warms up
                for name, times in passed.items():
                    found[name] += times.seconds
        self.times = {name: Times(tuple(seconds)) for name, seconds in found.items()}
        yield self._batch


def drive(
    turns: Turns, classifier: Classifier, config: DictConfig, plan: Plan, folder: Path
) -> None:
    """Fit a classifier on these turns, one epoch, as train.py would on one device.

    folder: what such a run writes goes there. Raises KeyboardInterrupt where it was stopped.
    """
    stopping = StopBetweenBatches()
    with open_loggers({}, folder, config={}, run_id=None, resumed_at=None) as loggers:
        trainer = build_trainer(
            config,
            precision=plan.precision,
            default_root_dir=folder,
            logger=loggers,
            plugins=[WholeFiles()],
            callbacks=step_callbacks(
                plan,
                loggers,
                folder,
                stopping=stopping,
                checkpoints=BestAndLast(folder, validated=False),
                compiled=False,
                from_step=0,
            ),
            max_epochs=1,
            max_steps=-1,
            max_time=None,
            accumulate_grad_batches=1,
            limit_train_batches=None,
            limit_val_batches=0,
            log_every_n_steps=min(config.trainer.log_every_n_steps, len(turns)),
        )
        try:
            with redirect_stdout(io.StringIO()):  # the line that an epoch ends with
                trainer.fit(classifier, turns, [])  # which is no validation, and no warning
        except SystemExit as stop:
            if stopping.asked:
                raise KeyboardInterrupt from stop
            raise
