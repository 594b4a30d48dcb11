"""Offline W&B runs read back, and a training run in miniature.

wandb ships the schema of its records and keeps their reader in its compiled core, so that is here.
"""

import json
import struct
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from pytorch_lightning import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset
from wandb.proto.wandb_internal_pb2 import Record

BLOCK = 32768
HEADER = struct.Struct("<IHB")  # checksum, length, which part of a record: LevelDB's log format
FULL, LAST = 1, 4


@dataclass
class OfflineRun:
    """What one part of a W&B run holds."""

    id: str = ""
    name: str = ""
    project: str = ""
    continues: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None

    def steps(self, metric: str) -> list[int]:
        """Where on the x axis the metric has points."""
        return [row["trainer/global_step"] for row in self.history if metric in row]


def records(path: Path):
    """The records of a .wandb file, in the order in which they were written."""
    data, position, record = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while position + HEADER.size <= len(data):
        if (left := BLOCK - position % BLOCK) < HEADER.size:
            position += left
            continue
        _, length, part = HEADER.unpack_from(data, position)
        position += HEADER.size
        record += data[position : position + length]
        position += length
        if part in (FULL, LAST):
            yield Record.FromString(record)
            record = b""


def values(items) -> dict[str, Any]:
    """Plain values by their keys, those of nested ones joined by dots."""
    return {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


@pytest.fixture
def offline_runs():
    """A function that reads the parts of the W&B run in a run's folder, oldest first."""

    def read(folder: Path) -> list[OfflineRun]:
        wandb.teardown()  # waits until what was finished is on disk
        parts = []
        for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
            part = OfflineRun()
            for record in records(file):
                match record.WhichOneof("record_type"):
                    case "run":
                        part.id, part.name = record.run.run_id, record.run.display_name
                        part.project = record.run.project
                        part.continues = record.run.resume
                        part.config.update(values(record.run.config.update))
                    case "config":
                        part.config.update(values(record.config.update))
                    case "history":
                        part.history.append(values(record.history.item))
                    case "summary":
                        part.summary.update(values(record.summary.update))
                    case "exit":
                        part.exit_code = record.exit.exit_code
            parts.append(part)
        return parts

    return read


@pytest.fixture
def full_disk():
    """A context in which no file of this process can grow beyond 512 bytes."""
    resource = pytest.importorskip("resource")

    @contextmanager
    def limited():
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


class Line(LightningModule):
    """One weight, one metric a step and one an epoch."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def training_step(self, batch, batch_idx):
        loss = (self.weight * batch[0]).square().mean()
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", (self.weight * batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


@pytest.fixture
def fit():
    """A function that trains a line, or another model, for some epochs of ten batches."""

    def train(loggers, *, epochs, checkpoint=None, callbacks=(), model=None, **knobs) -> Trainer:
        batches = DataLoader(TensorDataset(torch.linspace(0, 1, 10)), batch_size=1)
        trainer = Trainer(
            max_epochs=epochs,
            logger=loggers,
            callbacks=list(callbacks),
            accelerator="cpu",
            log_every_n_steps=1,
            enable_progress_bar=False,
            enable_model_summary=False,
            **{"enable_checkpointing": False, **knobs},
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`isinstance.treespec, LeafSpec", FutureWarning)
            warnings.filterwarnings("ignore", ".*does not have many workers", UserWarning)
            trainer.fit(model or Line(), batches, batches, ckpt_path=checkpoint)
        return trainer

    return train
