"""Whole batches as a pure function of (epoch, indices)."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment import Augment
from vitrail.data.collate import Batch, pad_together
from vitrail.data.decode import UnreadableImage
from vitrail.data.draws import draw, seeded
from vitrail.data.images import Images
from vitrail.data.resize import CenterCrop, FitInside

IN_CACHE = 100_000  # float32 numbers


class Batches(torch.utils.data.Dataset):
    """`batches[epoch, indices]` is a `Batch`, the same one in whichever process it is made.

    Args:
        images: of one split.
        fit: brings an image to the model's size. With `FitInside` images keep their own shapes and
            are padded together.
        augment: of training, or `UNCHANGED`.
        mean, std: per channel, of pixels in [0, 1].
        seed: of the augmentation.
        pad_to: padded heights and widths are multiples of this.
    """

    def __init__(
        self,
        images: Images,
        *,
        fit: CenterCrop | FitInside,
        augment: Augment,
        mean: Sequence[float],
        std: Sequence[float],
        seed: int,
        pad_to: int,
    ) -> None:
        self.images, self.augment = images, augment
        self.own_shapes = isinstance(fit, FitInside)
        self.seed, self.pad_to = seed, pad_to
        self._per_image = augment.per_image(fit)
        stored = images.in_memory and images.source.shape[-2:] == fit.size
        self._ready = stored and not augment.works_per_image
        mean, std = (torch.tensor(values)[:, None, None] for values in (mean, std))
        # (x / 255 - mean) / std, in one multiplication and one addition.
        self._factor, self._offset = 1 / (255 * std), -mean / std

    def __getitem__(self, key: tuple[int, np.ndarray]) -> Batch | UnreadableImage:
        """The batch, or what an unreadable file of it said.

        The error is returned because one that is raised in a worker arrives wrapped in that
        worker's traceback.
        """
        epoch, indices = key
        labels = self.images.labels[indices]
        try:
            if not self.own_shapes:
                return Batch(self._finished(epoch, indices), labels, None)
            alone = [self._finished(epoch, index)[0] for index in np.split(indices, len(indices))]
        except UnreadableImage as error:
            return error
        padded, real = pad_together(alone, self.pad_to)
        return Batch(padded, labels, real)

    def _finished(self, epoch: int, indices: np.ndarray) -> Tensor:
        """Images of one shape, augmented and normalised: (B,) -> float32 (B, 3, H, W)."""
        draws = draw(self.seed, epoch, indices)
        if self._ready:
            # Four times as fast as source[indices].
            images = self.images.source.index_select(0, torch.from_numpy(indices))
        else:
            images = self._one_by_one(indices, draws.seed)
        images = self.augment.whole_batch(images, draws)
        return self.augment.erased(self._normalised(images), draws)

    def _normalised(self, images: Tensor) -> Tensor:
        """uint8 (B, 3, H, W) -> float32, in parts that a core's cache holds from step to step."""
        normalised = torch.empty(images.shape)
        count = max(1, IN_CACHE // images[0].numel())
        for into, part in zip(normalised.split(count), images.split(count), strict=True):
            into.copy_(part).mul_(self._factor).add_(self._offset)
        return normalised

    def _one_by_one(self, indices: np.ndarray, seeds: np.ndarray) -> Tensor:
        """Decoded, resized and augmented image by image: (B,) -> uint8 (B, 3, H, W)."""
        images = []
        for index, seed in zip(indices.tolist(), seeds.tolist(), strict=True):
            with seeded(seed):
                images.append(self._per_image(self.images.pixels(index)))
        return torch.stack(images)
