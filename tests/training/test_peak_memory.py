import resource
import sys

import pytest
import torch

from vitrail.training import peak_memory
from vitrail.training.peak_memory import PeakMemory, peak_mib

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux counts it")


@on_linux
def test_the_peak_of_the_process_is_logged_with_each_epoch(classify, batched, trainer):
    fitted = trainer(max_epochs=1, callbacks=[PeakMemory()])
    fitted.fit(classify(3), batched(6, 6), batched(6, 6))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert fitted.callback_metrics["train/peak_mib"].item() == pytest.approx(peak, rel=0.05)


@on_linux
def test_the_peak_stays_when_memory_is_freed():
    before = peak_mib(torch.device("cpu"))
    large = torch.ones(int(before) * 2**20 // 4 + 2**24)  # more than the process ever had
    during = peak_mib(torch.device("cpu"))
    del large
    assert during > before + 32
    assert peak_mib(torch.device("cpu")) > before + 32


@pytest.mark.parametrize("status", [None, "VmSize: 9 kB\nVmRSS: 5 kB\n"], ids=["no", "gVisor's"])
def test_nothing_is_logged_where_nothing_counts_it_and_training_goes_on(
    status, classify, batched, trainer, monkeypatch, tmp_path
):
    monkeypatch.setattr(peak_memory, "STATUS", tmp_path / "status")
    if status is not None:
        (tmp_path / "status").write_text(status)
    fitted = trainer(max_epochs=2, callbacks=[PeakMemory()])
    fitted.fit(classify(3), batched(6, 6), batched(6, 6))
    assert "train/peak_mib" not in fitted.callback_metrics
    assert fitted.current_epoch == 2
