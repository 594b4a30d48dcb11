"""A batch, and how images of different shapes become one."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """What a model is trained on.

    images: float32 (B, 3, H, W), normalised; 0 in padding.
    labels: int64 (B,).
    padding: bool (B, H, W), True = real pixel; None where every pixel is.
    """

    images: Tensor
    labels: Tensor
    padding: Tensor | None


def pad_together(images: Sequence[Tensor], multiple: int) -> tuple[Tensor, Tensor]:
    """Put images (3, h, w) of any shapes into the upper left of one (B, 3, H, W).

    H and W are the largest of the batch, rounded up to a multiple (the model's patch size), so that
    no patch is cut.

    Returns: the zero-padded images and a bool mask (B, H, W), True = real.
    """
    height, width = (
        -(-max(image.shape[axis] for image in images) // multiple) * multiple for axis in (1, 2)
    )
    padded = images[0].new_zeros(len(images), 3, height, width)
    real = torch.zeros(len(images), height, width, dtype=torch.bool)
    for sample, image in enumerate(images):
        _, rows, cols = image.shape
        padded[sample, :, :rows, :cols] = image
        real[sample, :rows, :cols] = True
    return padded, real
