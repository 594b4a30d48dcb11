"""Batches as a pure function of (epoch, indices): decoded, augmented, normalised, padded."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment import Augment
from vitrail.data.decode import UnreadableImage
from vitrail.data.draws import draws_for, seeded
from vitrail.data.images import Images
from vitrail.data.resize import CenterCrop, FitInside

CACHE_NUMBERS = 100_000  # float32 numbers that stay in a core's cache between two operations


class Batch(NamedTuple):
    """What a model is trained on.

    images: float32 (B, 3, H, W), normalised; 0 in padding.
    labels: int64 (B,).
    valid: bool (B, H, W), True = real pixel; None where every pixel is.
    """

    images: Tensor
    labels: Tensor
    valid: Tensor | None


def pad_together(images: Sequence[Tensor], multiple: int) -> tuple[Tensor, Tensor]:
    """Put images (3, h, w) of any shapes into the upper left of one (B, 3, H, W).

    H and W are the largest of the batch, rounded up to a multiple (the model's patch size), so that
    no patch is cut. Returns the zero-padded images and a bool mask (B, H, W), True = real.
    """
    largest = [max(sides) for sides in zip(*(image.shape[1:] for image in images), strict=True)]
    height, width = (-(-side // multiple) * multiple for side in largest)
    padded = images[0].new_zeros(len(images), 3, height, width)
    valid = torch.zeros(len(images), height, width, dtype=torch.bool)
    for sample, image in enumerate(images):
        _, rows, cols = image.shape
        padded[sample, :, :rows, :cols] = image
        valid[sample, :rows, :cols] = True
    return padded, valid


@dataclass(eq=False)
class Batches(torch.utils.data.Dataset):
    """`batches[epoch, indices]` is a `Batch`, the same one in whichever process it is made.

    Args:
        images: of one split.
        fit: resizes an image for the model. With `FitInside` images keep their own shapes and are
            padded together.
        augment: of training, or `UNCHANGED`.
        mean, std: per channel, of pixels in [0, 1].
        seed: of the augmentation.
        pad_to: padded heights and widths are multiples of this.
    """

    images: Images
    _: KW_ONLY
    fit: CenterCrop | FitInside
    augment: Augment
    mean: Sequence[float]
    std: Sequence[float]
    seed: int
    pad_to: int

    def __post_init__(self) -> None:
        self._per_image = self.augment.per_image(self.fit)
        stored = self.images.in_memory and self.images.source.shape[-2:] == self.fit.size
        self._ready = stored and not self.augment.works_per_image
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        # (x / 255 - mean) / std, in one multiplication and one addition.
        self._factor, self._offset = 1 / (255 * std), -mean / std

    def __getitem__(self, key: tuple[int, np.ndarray]) -> Batch | UnreadableImage:
        """The batch, or the error of an unreadable file of it.

        The error is returned: one raised in a worker would arrive wrapped in its traceback.
        """
        epoch, indices = key
        labels = self.images.labels[indices]
        try:
            if not isinstance(self.fit, FitInside):
                return Batch(self._finished(epoch, indices), labels, None)
            alone = [self._finished(epoch, index)[0] for index in np.split(indices, len(indices))]
        except UnreadableImage as error:
            return error
        padded, valid = pad_together(alone, self.pad_to)
        return Batch(padded, labels, valid)

    def _finished(self, epoch: int, indices: np.ndarray) -> Tensor:
        """Images of one shape, augmented and normalised: (B,) -> float32 (B, 3, H, W)."""
        draws = draws_for(self.seed, epoch, indices)
        if self._ready:
            # Four times as fast as source[indices].
            images = self.images.source.index_select(0, torch.from_numpy(indices))
        else:
            decoded = []
            for index, seed in zip(indices.tolist(), draws.seed.tolist(), strict=True):
                with seeded(seed):
                    decoded.append(self._per_image(self.images.pixels(index)))
            images = torch.stack(decoded)
        images = self.augment.whole_batch(images, draws)
        normalised = torch.empty(images.shape)
        count = max(1, CACHE_NUMBERS // images[0].numel())
        for into, part in zip(normalised.split(count), images.split(count), strict=True):
            into.copy_(part).mul_(self._factor).add_(self._offset)
        return self.augment.erased(normalised, draws)
