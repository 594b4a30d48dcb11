"""Made-up images of any size and number, for tests and for measuring without a disk."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.data.images import Dataset, Images, Splits


@dataclass(frozen=True, kw_only=True)
class Synthetic(Dataset):
    """Each class is a coarse pattern of colours, and its images are that pattern under noise.

    Args:
        num_classes: named class_0, class_1 and on.
        image_size: side, or (H, W).
        train, test: number of images; classes take turns.
        noise: standard deviation on pixels in [0, 1].
        seed: of patterns and noise.
    """

    num_classes: int
    image_size: int | Sequence[int]
    train: int
    test: int
    noise: float
    seed: int

    def read(self) -> Splits:
        size = self.image_size if isinstance(self.image_size, int) else tuple(self.image_size)
        random = torch.Generator().manual_seed(self.seed)
        coarse = torch.rand(self.num_classes, 3, 4, 4, generator=random)
        patterns = torch.nn.functional.interpolate(coarse, size, mode="bilinear")
        counts = {"train": self.train, "test": self.test}
        images = {split: self._images(patterns, count, random) for split, count in counts.items()}
        return Splits(tuple(f"class_{label}" for label in range(self.num_classes)), images)

    def _images(self, patterns: Tensor, count: int, random: torch.Generator) -> Images:
        labels = torch.arange(count) % self.num_classes
        pixels = torch.empty(count, *patterns.shape[1:], dtype=torch.uint8)
        for index, label in enumerate(labels):
            noise = torch.randn(patterns.shape[1:], generator=random)
            pixels[index] = (patterns[label] + self.noise * noise).clamp(0, 1).mul(255).round()
        return Images(pixels, labels)
