import pytest
from pytorch_lightning import Callback
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities.exceptions import SIGTERMException

from vitrail.training import throughput
from vitrail.training.throughput import Throughput


@pytest.fixture
def clock(monkeypatch):
    """A clock that only `clock.now += seconds` moves."""

    class Clock:
        now = 0.0

    monkeypatch.setattr(throughput, "_now", lambda trainer: Clock.now)
    return Clock


class Slow(Callback):
    """Every training batch takes 2 s and the first of an epoch 50 more, a validation 1000 s, and
    what is saved after it 500 s."""

    def __init__(self, clock):
        self.clock, self.rates = clock, []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.clock.now += 2 + 50 * (batch_idx == 0)

    def on_validation_batch_end(self, *args, **kwargs):
        self.clock.now += 1000

    def on_validation_end(self, trainer, pl_module):
        self.clock.now += 500

    def on_train_epoch_end(self, trainer, pl_module):
        self.rates.append(trainer.callback_metrics["train/images_per_second"].item())


@pytest.mark.parametrize("given", [{}, {"accumulate_grad_batches": 2}, {"val_check_interval": 0.5}])
def test_only_the_time_of_training_batches_counts(given, clock, classify, batched, trainer):
    slow = Slow(clock)
    callbacks = [Throughput(), slow]
    fitted = trainer(max_epochs=2, callbacks=callbacks, log_every_n_steps=2, **given)
    fitted.fit(classify(3), batched(48, 6), batched(6, 6))
    assert slow.rates == pytest.approx([3.0, 3.0])


def test_an_epoch_that_is_too_short_to_be_measured_reports_nothing(classify, batched, trainer):
    fitted = trainer(max_epochs=2, callbacks=[Throughput()])
    fitted.fit(classify(3), batched(6, 6), batched(6, 6))
    assert "train/images_per_second" not in fitted.callback_metrics


class Times(Logger):
    """What a run logs of its time, by step."""

    name = version = None

    def __init__(self):
        super().__init__()
        self.rows = []

    def log_metrics(self, metrics, step=None):
        if "train/seconds" in metrics:
            self.rows.append((step, metrics["train/seconds"], "val/acc" in metrics))

    def log_hyperparams(self, *args, **kwargs):
        """None are looked at."""


@pytest.mark.parametrize("given", [{}, {"val_check_interval": 0.5}])
def test_the_time_of_training_stands_beside_each_validation(
    given, clock, classify, batched, trainer
):
    times = Times()
    fitted = trainer(max_epochs=2, callbacks=[Throughput(), Slow(clock)], logger=times, **given)
    fitted.fit(classify(3), batched(48, 6), batched(6, 6))
    halves = [(3, 58.0), (7, 66.0), (11, 124.0), (15, 132.0)]
    validated = halves if given else halves[1::2]
    assert [row[:2] for row in times.rows if row[2]] == validated
    assert [row[:2] for row in times.rows if not row[2]] == halves[1::2]


def test_a_resumed_run_counts_its_time_on(clock, classify, batched, trainer, tmp_path):
    first = trainer(max_epochs=1, callbacks=[Throughput(), Slow(clock)])
    first.fit(classify(3), batched(48, 6), batched(6, 6))
    first.save_checkpoint(tmp_path / "last.ckpt")
    times = Times()
    second = trainer(max_epochs=2, callbacks=[Throughput(), Slow(clock)], logger=times)
    second.fit(classify(3), batched(48, 6), batched(6, 6), ckpt_path=tmp_path / "last.ckpt")
    assert times.rows[-1][:2] == (15, 132.0)


class Stop(Callback):
    """The system stops the run when the second batch is done."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 1:
            raise SIGTERMException


def test_a_run_that_was_stopped_keeps_the_time_of_its_last_epoch(clock, classify, batched, trainer):
    throughput = Throughput()
    stopped = trainer(max_epochs=1, callbacks=[throughput, Slow(clock), Stop()])
    with pytest.raises(SIGTERMException):
        stopped.fit(classify(3), batched(48, 6), batched(6, 6))
    assert throughput.state_dict() == {"seconds": 54.0}
