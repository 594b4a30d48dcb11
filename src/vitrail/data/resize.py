"""Resizing images of any shape: all to one shape, or each in its own aspect."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2.functional import resize


@dataclass(frozen=True)
class CenterCrop:
    """The largest centred part with the aspect of `size` (H, W), resized to `size`, antialiased."""

    size: tuple[int, int]

    def __call__(self, image: Tensor) -> Tensor:
        """uint8 (3, h, w) -> (3, H, W)."""
        (rows, cols), (height, width) = self.size, image.shape[-2:]
        if (rows, cols) == (height, width):
            return image
        scale = min(height / rows, width / cols)
        part = max(1, round(rows * scale)), max(1, round(cols * scale))
        corner = (height - part[0]) // 2, (width - part[1]) // 2
        # Cropping first keeps a 1 x 1000 strip from becoming a gigapixel on its way to a square.
        return resized_crop(image, *corner, *part, size=self.size)


@dataclass(frozen=True)
class FitInside:
    """The whole image in its own aspect, as large as fits inside `size` (H, W), antialiased."""

    size: tuple[int, int]

    def __call__(self, image: Tensor) -> Tensor:
        """uint8 (3, h, w) -> (3, at most H, at most W)."""
        (rows, cols), (height, width) = self.size, image.shape[-2:]
        scale = min(rows / height, cols / width)
        fitted = max(1, round(height * scale)), max(1, round(width * scale))
        return image if fitted == (height, width) else resize(image, list(fitted), antialias=True)


class RandomResizedCrop(v2.RandomResizedCrop):
    """torchvision's, equal pixel for pixel and faster."""

    def transform(self, inpt: Tensor, params: dict[str, Any]) -> Tensor:
        return resized_crop(inpt, **params, size=self.size)


def resized_crop(
    image: Tensor, top: int, left: int, height: int, width: int, *, size: tuple[int, int]
) -> Tensor:
    """A part of an image, antialiased: uint8 (3, h, w) -> (3, *size).

    torchvision's, but channels last: torch's resize of uint8 reads that layout without a copy.
    """
    part = image[None, :, top : top + height, left : left + width]
    part = part.contiguous(memory_format=torch.channels_last)
    return resize(part, list(size), antialias=True)[0]
