import re
import sys

import pytest

from vitrail.training import progress
from vitrail.training.progress import Progress
from vitrail.training.throughput import Throughput


@pytest.fixture
def fit(classify, batched, trainer):
    def run(**given):
        fitted = trainer(callbacks=[Progress(), Throughput()], enable_progress_bar=True, **given)
        fitted.fit(classify(3), batched(40, 4), batched(8, 4))

    return run


def test_into_a_file_goes_one_line_an_epoch(fit, capfd):
    fit(max_epochs=3)
    out, _ = capfd.readouterr()
    assert re.fullmatch(
        r"(epoch \d/3: loss \d\.\d{4}, train accuracy [\d.]+%, val loss \d\.\d{4}, "
        r"val accuracy [\d.]+%, images/s [\d,]+\n){3}",
        out,
    )


def test_an_epoch_without_validation_repeats_no_old_accuracy(fit, capfd):
    fit(max_epochs=4, check_val_every_n_epoch=2)
    lines = capfd.readouterr().out.splitlines()
    assert ["val accuracy" in line for line in lines] == [False, True, False, True]


def test_a_training_measured_in_steps_names_no_last_epoch(fit, capfd):
    fit(max_steps=10)
    assert capfd.readouterr().out.startswith("epoch 1: ")


def test_on_a_terminal_a_bar_shows_accuracy_and_images_per_second(fit, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    fit(max_epochs=2)
    out = capsys.readouterr().out
    assert "epoch 2/2: " in out
    assert re.search(r"epoch 2/2: .* \d+/10 .*loss=[\d.]+, acc=[\d.]+%, images/s=[\d,]+", out)
