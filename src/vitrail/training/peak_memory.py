"""The most memory that a training has taken so far."""

from pathlib import Path

import torch
from pytorch_lightning import Callback, LightningModule, Trainer

MIB = 2**20
STATUS = Path("/proc/self/status")


class PeakMemory(Callback):
    """Logs `train/peak_mib` with the figures of an epoch: MiB of the process that took most.

    On CUDA what torch had allocated at most since training began; elsewhere the whole process, with
    libraries and images, since it was started, and nothing where no system counts it.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if pl_module.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(pl_module.device)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if (peak := peak_mib(pl_module.device)) is not None:
            pl_module.log("train/peak_mib", peak, sync_dist=True, reduce_fx="max")


def peak_mib(device: torch.device) -> float | None:
    """See `PeakMemory`; None where it is not counted, which some that call themselves Linux do."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MIB
    if not STATUS.exists():
        return None
    lines = STATUS.read_text(encoding="utf-8").splitlines()
    kib = next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)
    return None if kib is None else kib / 1024
