"""The pipelines that can serve one dataset's training images: vitrail's and torchvision's."""

from dataclasses import dataclass
from functools import cached_property

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch.utils.data import DataLoader

from vitrail.bench.per_sample import PerSample, usual
from vitrail.data.augment import Augment
from vitrail.data.batches import Batches
from vitrail.data.images import Images
from vitrail.data.loader import Loader, Order
from vitrail.data.module import ImageData
from vitrail.data.resize import CenterCrop, FitInside
from vitrail.data.scan import check_readable, decode_all
from vitrail.errors import UserError


class NoPipeline(UserError):
    """A pipeline does not exist for these images, or is another one; the message says why."""


@dataclass(frozen=True)
class Pipelines:
    """Loaders over the same training images, in whole batches.

    native: whether images keep shapes of their own. images: as the dataset has them, evenly spread
    over its training images.
    """

    data: ImageData
    native: bool
    images: Images

    @classmethod
    def of(cls, node: DictConfig, most: int) -> "Pipelines":
        """Those of a config of data, over `most` images at most, which are read now.

        Raises UserError where the images fill no batch.
        """
        data: ImageData = instantiate(node, cache=False, check=None, workers=0, _convert_="all")
        data.prepare_data()
        every = data.loader("train").batches.images
        count = min(most, len(every))
        images = every[torch.arange(count) * len(every) // count]
        if not images.in_memory:
            unreadable = check_readable(images, title="checking")
            readable = [index for index in range(count) if index not in unreadable]
            images = images[torch.tensor(readable, dtype=torch.int64)]
        whole = len(images) // data.batch_size * data.batch_size
        if not whole:
            raise UserError(
                f"data.batch_size={data.batch_size} is more than the {len(images)} training images "
                "that are measured; use a smaller one, or more of bench.images"
            )
        return cls(data, node.resize == "native", images[torch.arange(whole)])

    def vitrail(self, augment: Augment, workers: int, *, cached: bool) -> Loader:
        """vitrail's own, from images that were decoded once or from those of the dataset."""
        if self.native and (cached or augment.scale):
            part = "cache" if cached else "random resized crop"
            raise NoPipeline(f"data.resize=native keeps shapes of their own, which no {part} has")
        if not cached and self._sized:
            raise NoPipeline("cached or not is one here: the images lie in memory, at their size")
        data = self.data
        batches = Batches(
            self._decoded if cached else self.images,
            fit=(FitInside if self.native else CenterCrop)(data.image_size),
            augment=augment,
            mean=data.mean,
            std=data.std,
            seed=data.seed,
            pad_to=data.pad_to,
        )
        order = Order(len(self.images), batch_size=data.batch_size, seed=data.seed, rank=0, world=1)
        return Loader(batches, order, workers=workers)

    def torchvision(self, augment: Augment, workers: int) -> DataLoader:
        """A dataset of single images, its transforms, and torch's loader around them."""
        if self.native:
            raise NoPipeline("it has no batches of images in shapes of their own")
        data = self.data
        transform = usual(
            augment, size=data.image_size, sized=self._sized, mean=data.mean, std=data.std
        )
        return DataLoader(
            PerSample(self.images, transform),
            batch_size=data.batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=torch.cuda.is_available(),
        )

    @property
    def _sized(self) -> bool:
        """Whether the dataset's images lie in memory and have their size already."""
        images = self.images
        return images.in_memory and images.source.shape[-2:] == self.data.image_size

    @cached_property
    def _decoded(self) -> Images:
        decoded, unreadable = decode_all(
            self.images, CenterCrop(self.data.image_size), title="decoding"
        )
        if unreadable:
            raise NoPipeline(f"cannot read {next(iter(unreadable.values()))}")
        return decoded


class Epochs:
    """Called, it takes an epoch of batches from a loader; images: how many the last one had."""

    def __init__(self, loader: Loader | DataLoader):
        self.loader, self.images = loader, 0
        self._number = 0

    def __call__(self) -> None:
        if isinstance(self.loader, Loader):
            self.loader.sampler.set_epoch(self._number)
        self._number += 1
        self.images = sum(len(batch[0]) for batch in self.loader)

    def end(self) -> None:
        """End the loader's processes; left to Python, each of them would take seconds."""
        if self.loader._iterator is not None:
            self.loader._iterator._shutdown_workers()
            self.loader._iterator = None
