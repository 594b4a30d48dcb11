"""Training for test_processes.py: python processes.py <trainer> <processes> <folder>.

Started once, by Lightning once more for every further process; each writes what it found.
"""

import json
import sys
from copy import deepcopy
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from pytorch_lightning import LightningDataModule, Trainer, seed_everything
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader

from vitrail.data.loader import Order
from vitrail.training.classifier import Classifier
from vitrail.training.ema import EMA
from vitrail.training.optim import Optim
from vitrail.training.progress import Progress, Throughput
from vitrail.training.schedule import WarmupCosine

CONFIGS = Path(__file__).parents[2] / "configs"
IMAGES = torch.randn(61, 3, 2, 2, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(7, (61,), generator=torch.Generator().manual_seed(2))
GLOBAL_BATCH = 12


class Centre(nn.Module):
    """Subtracts in evaluation the mean seen in training, which is another in every process."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(12))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.lerp_(x.detach().mean(dim=0), 0.1)
            return x
        return x - self.mean


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        block = nn.Sequential(nn.Linear(12, 12), nn.LayerNorm(12), nn.GELU(), Centre())
        self.blocks = nn.ModuleList([block, deepcopy(block)])
        self.head = nn.Linear(12, 7)

    def forward(self, images: Tensor) -> Tensor:
        first, second = self.blocks
        return self.head(second(first(images.flatten(1))))  # (B, 12) -> (B, 7)


class Shards(LightningDataModule):
    """Every process has its own images: 60 together to train on, all 61 to validate."""

    def share(self, count: int) -> DataLoader:
        rank, world = self.trainer.global_rank, self.trainer.world_size
        order = Order(count, batch_size=GLOBAL_BATCH // world, seed=None, rank=rank, world=world)
        batches = [(IMAGES[indices], LABELS[indices], None) for _, indices in order]
        return DataLoader(batches, batch_size=None)

    def train_dataloader(self) -> DataLoader:
        return self.share(60)

    def val_dataloader(self) -> DataLoader:
        return self.share(61)


def train(name: str, processes: int, folder: Path, ckpt_path: Path | None = None) -> Trainer:
    """Two epochs under configs/trainer/<name>.yaml, or the rest of them; a checkpoint of each."""
    seed_everything(0, verbose=False)
    model = Classifier(
        Network(),
        classes=[str(index) for index in range(7)],
        optim=Optim(
            name="momentum", lr=0.1, weight_decay=0.01, layer_decay=None,
            options={"momentum": 0.9}, schedule=WarmupCosine(warmup=0.1, final=0.5),
        ),
        label_smoothing=0.1, mixup=None, cutmix=None,
    )  # fmt: skip
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = compose(f"trainer/{name}", ["+deterministic=false"]).trainer
    config.update(accelerator="cpu", devices=processes, max_epochs=2, log_every_n_steps=1)
    ema = [] if name == "fsdp" else [EMA(0.9)]
    how = {"filename": "{epoch}", "save_top_k": -1, "auto_insert_metric_name": False}
    callbacks = [*ema, Progress(), Throughput(), ModelCheckpoint(folder / "checkpoints", **how)]
    trainer = instantiate(config, logger=CSVLogger(folder), callbacks=callbacks)
    trainer.fit(model, datamodule=Shards(), ckpt_path=ckpt_path)
    return trainer


def main(name: str, processes: str, folder: str) -> None:
    straight, resumed = Path(folder, "straight"), Path(folder, "resumed")
    trainer = train(name, int(processes), straight)
    report = trainer.lightning_module.report("val")
    confusion = report.pop("confusion").tolist()
    found = {"batches": len(trainer.val_dataloaders), "report": report, "confusion": confusion}
    Path(folder, f"rank-{trainer.global_rank}.json").write_text(json.dumps(found))
    train(name, int(processes), resumed, straight / "checkpoints/0.ckpt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
