"""Small parts to train with: an Optim, batches, a network, a trainer that writes under tmp_path."""

import traceback

import pytest
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

from vitrail.training.classifier import Classifier
from vitrail.training.optim import Optim
from vitrail.training.schedule import WarmupCosine


@pytest.fixture
def optim():
    """optim(name=…, …) -> Optim; what is not given stays at plain AdamW."""

    def build(**given) -> Optim:
        values = {"name": "adamw", "lr": 0.1, "weight_decay": 0.1, "layer_decay": None}
        values |= {"options": {}, "schedule": WarmupCosine(warmup=0.0, final=1.0)}
        return Optim(**values | given)

    return build


class Plain(nn.Module):
    """One linear layer on the pixels: (B, 3, 2, 3) -> (B, classes)."""

    def __init__(self, classes: int):
        super().__init__()
        self.head = nn.Linear(18, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(images.flatten(1))


@pytest.fixture
def classify(optim):
    """classify(classes, network=…, …) -> Classifier."""

    def build(classes: int, network: nn.Module | None = None, **given) -> Classifier:
        torch.manual_seed(0)
        values = {"optim": optim(), "label_smoothing": 0.0, "mixup": None, "cutmix": None}
        names = [f"class {index}" for index in range(classes)]
        return Classifier(network or Plain(classes), classes=names, **values | given)

    return build


@pytest.fixture
def batched():
    """batched(count, size, classes) -> DataLoader of unpadded batches, the same ones every time."""

    def build(count: int, size: int, classes: int = 3, shape=(3, 2, 3)) -> DataLoader:
        random = torch.Generator().manual_seed(0)
        images = torch.randn(count, *shape, generator=random)
        labels = torch.randint(classes, (count,), generator=random)
        pairs = zip(images.split(size), labels.split(size), strict=True)
        return DataLoader([(image, label, None) for image, label in pairs], batch_size=None)

    return build


@pytest.fixture
def trainer(tmp_path):
    """trainer(max_epochs=…, …) -> Trainer on one CPU process."""

    def build(**given) -> Trainer:
        values = {"accelerator": "cpu", "devices": 1, "logger": CSVLogger(tmp_path)}
        off = ("checkpointing", "progress_bar", "model_summary")
        values |= {f"enable_{name}": False for name in off}
        values |= {"use_distributed_sampler": False, "inference_mode": False}
        return Trainer(**values | {"num_sanity_val_steps": 0, "log_every_n_steps": 1} | given)

    return build


@pytest.fixture
def fit(trainer, batched):
    """fit(model, data, …) -> the Trainer, after an epoch of `data`, validated on the same."""

    def run(model, data: DataLoader | None = None, *, ckpt_path=None, **given) -> Trainer:
        fitted, data = trainer(**{"max_epochs": 1} | given), data or batched(10, 4)
        fitted.fit(model, data, data, ckpt_path=ckpt_path)
        return fitted

    return run


READ = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.bincount.default}


class Readings(TorchDispatchMode):
    """Collects in `stacks` where a tensor's value was read, by `item()` or by what calls it."""

    def __init__(self):
        super().__init__()
        self.stacks = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in READ:
            self.stacks.append("".join(traceback.format_stack(limit=8)))
        return function(*args, **kwargs or {})


@pytest.fixture
def readings() -> Readings:
    """A context that collects where tensors' values are read, each of which waits for a GPU."""
    return Readings()
