"""`bench=data`: images a second from vitrail's loader and from torchvision's usual pipeline."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets.folder import default_loader

from vitrail.bench.harness import Summary, TimedBench
from vitrail.bench.report import Chart, Row
from vitrail.data.augment import Augment
from vitrail.data.batches import Batches
from vitrail.data.images import Images
from vitrail.data.loader import Loader, Order
from vitrail.data.module import ImageData
from vitrail.data.resize import CenterCrop
from vitrail.data.scan import check_readable, decode_all
from vitrail.errors import UserError
from vitrail.run.plan import build

POLICIES = {"randaugment": transforms.RandAugment, "trivial": transforms.TrivialAugmentWide}


class PerSample(torch.utils.data.Dataset):
    """An image, transformed, and its label, as torchvision's CIFAR10 and ImageFolder make them."""

    def __init__(self, images: Images, transform: Callable[[Image.Image], Tensor]):
        self.transform, self.labels = transform, images.labels.tolist()
        if images.in_memory:
            self.sources = images.source.permute(0, 2, 3, 1).contiguous().numpy()  # (n, H, W, 3)
            self.open = Image.fromarray
        else:
            self.sources = [images.path(index) for index in range(len(images))]
            self.open = default_loader

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """float32 (3, H, W) and the label."""
        return self.transform(self.open(self.sources[index])), self.labels[index]


def usual_transform(augment: Augment, data: ImageData, *, sized: bool) -> transforms.Compose:
    """torchvision's transform that does what `augment` does; sized: images have their size already.

    Of the first transforms, not v2: on small pictures they are the faster ones.
    """
    size, steps = data.image_size, []
    if augment.scale is not None:
        steps = [transforms.RandomResizedCrop(size, scale=augment.scale)]
    elif not sized:
        square = size[0] == size[1]
        steps = [transforms.Resize(size[0]), transforms.CenterCrop(size)] if square else []
        steps = steps or [transforms.Resize(size)]
    if augment.auto is not None:
        steps.append(POLICIES[augment.auto]())
    if augment.crop_padding:
        how = {"padding": augment.crop_padding, "padding_mode": augment.padding_mode}
        steps.append(transforms.RandomCrop(size, **how))
    if augment.flip:
        steps.append(transforms.RandomHorizontalFlip())
    steps += [transforms.ToTensor(), transforms.Normalize(data.mean, data.std)]
    if augment.erase:
        steps.append(transforms.RandomErasing(augment.erase))
    return transforms.Compose(steps)


class Epochs:
    """Called, it takes an epoch of batches from a loader."""

    def __init__(self, loader: Loader | DataLoader):
        self.loader, self._number = loader, 0

    def __call__(self) -> None:
        if isinstance(self.loader, Loader):
            self.loader.sampler.set_epoch(self._number)
        self._number += 1
        for _ in self.loader:
            pass

    def end(self) -> None:
        """End the loader's processes; left to Python, each of them would take seconds."""
        if self.loader._iterator is not None:
            self.loader._iterator._shutdown_workers()
            self.loader._iterator = None


@dataclass(frozen=True, kw_only=True)
class DataBench(TimedBench):
    """The training images of `config.data`, served an epoch in turn by each pipeline, by workers.

    The pipelines are torchvision's, vitrail's, and vitrail's from images that were decoded once,
    where that is another one. The keys are described in configs/bench/data.yaml. Raises UserError
    for what cannot be measured, before anything is.
    """

    workers: Sequence[int]
    images: int

    keys = ("pipeline", "dataset", "image_size", "workers", "batch_size")
    columns = ("images_per_second", "time_ratio", "verdict", "baseline", "images", "rounds")

    def __post_init__(self):
        super().__post_init__()
        if min(self.workers) < 0:
            raise UserError(f"bench.workers must be >= 0, got {list(self.workers)}")
        if self.config.data.resize == "native":
            raise UserError("bench=data takes images of one size, got data.resize=native; use crop")

    def cells(self) -> Sequence[str]:
        return [f"{count} workers" for count in self.workers]

    def measure(self, cell: str) -> list[Row]:
        """A row a pipeline, the fastest first."""
        workers, node, images = int(cell.split()[0]), self.config.data, len(self._read[1])
        epochs = {name: Epochs(loader) for name, loader in self.pipelines(workers).items()}
        try:
            times = self.take_turns(epochs, "cpu")
        finally:
            for one in epochs.values():
                one.end()
        words = {"dataset": node.dataset._target_.rpartition(".")[2], "workers": workers}
        words |= {"image_size": str(node.image_size), "batch_size": node.batch_size}
        rows = self.rows_of(times, "epoch_ms", images=images)
        return [
            {"pipeline": name, **words, "images": images, **row, "refused": ""}
            for name, row in rows.items()
        ]

    def summary(self, rows: pd.DataFrame) -> Summary:
        return {}, [Chart("loading", rows, "workers", "images_per_second", "pipeline")]

    def pipelines(self, workers: int) -> dict[str, Loader | DataLoader]:
        """Loaders over the same images by name."""
        data, images = self._read
        augment, fit = build(self.config.data.augment), CenterCrop(data.image_size)
        sized = images.in_memory and images.source.shape[-2:] == data.image_size
        sources = {"vitrail": images}
        if not sized:
            sources["vitrail cached"] = decode_all(images, fit, title="decoding")[0]
        theirs = PerSample(images, usual_transform(augment, data, sized=sized))
        how = {"batch_size": data.batch_size, "shuffle": True, "drop_last": True}
        how |= {"num_workers": workers, "persistent_workers": workers > 0}
        loader = DataLoader(theirs, **how, pin_memory=torch.cuda.is_available())
        loaders = {"torchvision": loader}
        for name, source in sources.items():
            order = Order(len(images), batch_size=data.batch_size, seed=data.seed, rank=0, world=1)
            normal = {"mean": data.mean, "std": data.std, "seed": data.seed, "pad_to": data.pad_to}
            batches = Batches(source, fit=fit, augment=augment, **normal)
            loaders[name] = Loader(batches, order, workers=workers)
        return loaders

    @cached_property
    def _read(self) -> tuple[ImageData, Images]:
        """The data and the images that are served: whole batches, evenly spread over training's."""
        data: ImageData = build(self.config.data, cache=False, check=None, workers=0)
        data.prepare_data()
        every = data.loader("train").batches.images
        images = every[torch.arange(count := min(self.images, len(every))) * len(every) // count]
        if not images.in_memory:
            unreadable = check_readable(images, title="checking")
            images = images[torch.tensor([i for i in range(count) if i not in unreadable])]
        whole = len(images) // data.batch_size * data.batch_size
        if not whole:
            raise UserError(f"data.batch_size must be <= {len(images)}, got {data.batch_size}")
        return data, images[torch.arange(whole)]
