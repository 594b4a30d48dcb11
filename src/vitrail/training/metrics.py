"""Accuracy and loss over exactly the images there are: in evaluation, and within an epoch."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric

# A float32 sum over 50,000 images is off in the sixth digit; Apple's GPUs have nothing wider.
SUM = torch.float32 if torch.backends.mps.is_available() else torch.float64
TOP = 5


class ClassificationMetrics(Metric):
    """Counts that add up over batches and processes of any size; nothing is a mean of means.

    torchmetrics gathers the states, once, in `compute`.
    """

    # Not torchmetrics' own confusion matrix: its `bincount` waits for the GPU at every batch and,
    # in deterministic mode, takes batch x classes² numbers.

    full_state_update = False

    def __init__(self, classes: int):
        super().__init__()
        zeros = torch.zeros(classes, classes, dtype=torch.long)
        self.add_state("confusion", zeros, dist_reduce_fx="sum")
        self.add_state("hits", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("loss", torch.tensor(0, dtype=SUM), dist_reduce_fx="sum")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """logits (B, classes) in float32 or wider, labels (B,)."""
        cells = labels * len(self.confusion) + logits.argmax(dim=1)
        self.confusion.view(-1).scatter_add_(0, cells, torch.ones_like(cells))
        if len(self.confusion) > TOP:
            best = logits.topk(TOP, dim=1).indices  # (B, 5)
            self.hits += (best == labels[:, None]).sum()
        self.loss += F.cross_entropy(logits, labels, reduction="none").sum(dtype=SUM)

    def compute(self) -> dict[str, Any]:
        """acc, loss, count, confusion (true x predicted, on the CPU); acc_top5 if classes > 5."""
        confusion = self.confusion.cpu()
        count = int(confusion.sum())
        found = {"acc": int(confusion.trace()) / count, "loss": self.loss.item() / count}
        if len(confusion) > TOP:
            found["acc_top5"] = self.hits.item() / count
        return found | {"count": count, "confusion": confusion}


class RunningMeans:
    """Means over the images of several batches; reads no value, so that no GPU is waited for."""

    def __init__(self):
        self._sums: dict[str, tuple[Tensor, int]] = {}

    def add(self, name: str, mean: Tensor, images: int) -> None:
        """Add a batch of so many images with this mean, a scalar without gradient."""
        total, count = self._sums.get(name, (0.0, 0))
        self._sums[name] = total + mean * images, count + images

    def take(self) -> dict[str, tuple[Tensor, int]]:
        """The mean and the number of images by name since the last call."""
        sums, self._sums = self._sums, {}
        return {name: (total / count, count) for name, (total, count) in sums.items()}
