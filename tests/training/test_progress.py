import re
import resource
import sys

import pytest
import torch
from pytorch_lightning import Callback
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities.exceptions import SIGTERMException

from vitrail.training import progress
from vitrail.training.progress import PeakMemory, Progress, Throughput, peak_mib


@pytest.fixture
def shown(fit, classify, batched):
    """shown(…): train in epochs of ten batches with what shows the progress."""

    def run(**given):
        callbacks = [Progress(), Throughput()]
        fit(classify(3), batched(40, 4), callbacks=callbacks, enable_progress_bar=True, **given)

    return run


def test_into_a_file_goes_one_line_an_epoch(shown, capfd):
    shown(max_epochs=3)
    assert re.fullmatch(
        r"(epoch \d/3: loss \d\.\d{4}, train accuracy [\d.]+%, val loss \d\.\d{4}, "
        r"val accuracy [\d.]+%, images/s [\d,]+\n){3}",
        capfd.readouterr().out,
    )


def test_an_epoch_without_validation_repeats_no_old_accuracy(shown, capfd):
    shown(max_epochs=4, check_val_every_n_epoch=2)
    lines = capfd.readouterr().out.splitlines()
    assert ["val accuracy" in line for line in lines] == [False, True, False, True]


def test_a_training_measured_in_steps_names_no_last_epoch(shown, capfd):
    shown(max_epochs=-1, max_steps=10)
    assert capfd.readouterr().out.startswith("epoch 1: ")


def test_on_a_terminal_a_bar_shows_accuracy_and_images_per_second(shown, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(progress, "BAR_SECONDS", 0.0)
    shown(max_epochs=2)
    out = capsys.readouterr().out
    assert "epoch 2/2: " in out
    assert re.search(r"epoch 2/2: .* \d+/10 .*loss=[\d.]+, acc=[\d.]+%, images/s=[\d,]+", out)


@pytest.fixture
def clock(monkeypatch):
    """A clock that only `clock.now += seconds` moves."""

    class Clock:
        now = 0.0

    monkeypatch.setattr(progress, "_now", lambda trainer: Clock.now)
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
        self.rates.append(trainer.callback_metrics.get("train/images_per_second"))


@pytest.fixture
def timed(fit, clock, classify, batched):
    """timed(…) -> the Trainer, whose first callbacks are Throughput and Slow."""

    def run(*callbacks, images=48, **given):
        callbacks = [Throughput(), Slow(clock), *callbacks]
        return fit(classify(3), batched(images, 6), callbacks=callbacks, **given)

    return run


@pytest.mark.parametrize("given", [{}, {"accumulate_grad_batches": 2}, {"val_check_interval": 0.5}])
def test_only_the_time_of_training_batches_counts(given, timed):
    fitted = timed(max_epochs=2, log_every_n_steps=2, **given)
    assert fitted.callbacks[1].rates == [3.0, 3.0]


def test_an_epoch_that_is_too_short_to_be_measured_reports_nothing(timed):
    assert timed(images=6, max_epochs=2).callbacks[1].rates == [None, None]


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
def test_the_time_of_training_stands_beside_each_validation(given, timed):
    times = Times()
    timed(max_epochs=2, logger=times, **given)
    halves = [(3, 58.0), (7, 66.0), (11, 124.0), (15, 132.0)]
    validated = halves if given else halves[1::2]
    assert [row[:2] for row in times.rows if row[2]] == validated
    assert [row[:2] for row in times.rows if not row[2]] == halves[1::2]


def test_a_resumed_run_counts_its_time_on(timed, tmp_path):
    timed().save_checkpoint(tmp_path / "last.ckpt")
    times = Times()
    timed(max_epochs=2, logger=times, ckpt_path=tmp_path / "last.ckpt")
    assert times.rows[-1][:2] == (15, 132.0)


class Stop(Callback):
    """The system stops the run when the second batch is done."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 1:
            self.throughput = trainer.callbacks[0]
            raise SIGTERMException


def test_a_run_that_was_stopped_keeps_the_time_of_its_last_epoch(timed):
    stop = Stop()
    with pytest.raises(SIGTERMException):
        timed(stop)
    assert stop.throughput.state_dict() == {"seconds": 54.0}


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux counts it")


@on_linux
def test_the_peak_of_the_process_is_logged_with_each_epoch(fit, classify):
    fitted = fit(classify(3), callbacks=[PeakMemory()])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert fitted.callback_metrics["train/peak_mib"].item() == pytest.approx(peak, rel=0.05)


@on_linux
def test_the_peak_stays_when_memory_is_freed():
    before = peak_mib(torch.device("cpu"))
    large = torch.ones(int(before) * 2**20 // 4 + 2**24)  # more than the process ever had
    during = peak_mib(torch.device("cpu"))
    del large
    assert min(during, peak_mib(torch.device("cpu"))) > before + 32


@pytest.mark.parametrize("status", [None, "VmSize: 9 kB\nVmRSS: 5 kB\n"], ids=["no", "gVisor's"])
def test_nothing_is_logged_where_nothing_counts_it_and_training_goes_on(
    status, fit, classify, monkeypatch, tmp_path
):
    monkeypatch.setattr(progress, "PROCESS_STATUS", tmp_path / "status")
    if status is not None:
        (tmp_path / "status").write_text(status)
    fitted = fit(classify(3), max_epochs=2, callbacks=[PeakMemory()])
    assert "train/peak_mib" not in fitted.callback_metrics
    assert fitted.current_epoch == 2
