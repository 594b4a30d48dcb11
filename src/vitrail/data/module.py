"""Images and batches for a run: the one LightningDataModule."""

import logging
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.data import suggested_max_num_workers
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from vitrail.data.augment import UNCHANGED, Augment
from vitrail.data.batches import Batches
from vitrail.data.classes import read_names, renumber, some
from vitrail.data.images import Dataset, Images, Splits
from vitrail.data.loader import Loader, Order, rank_and_world
from vitrail.data.resize import CenterCrop, FitInside
from vitrail.data.scan import check_readable, decode_all
from vitrail.data.split import hold_out
from vitrail.errors import UserError

_log = logging.getLogger(__name__)
_info, _warn = rank_zero_only(_log.info), rank_zero_only(_log.warning)

_RESIZES = {"crop": CenterCrop, "native": FitInside}


class ImageData(pl.LightningDataModule):
    """The images of one dataset, split, and served as normalised batches.

    Building it reads nothing and raises `UserError` for a value outside its range. A dataset
    without a validation split has one held out of its training images.

    Args:
        dataset: builds the dataset, given `root` where that is not None.
        root: where its files are; relative to the folder that the program was started in.
        image_size: side, or (H, W).
        resize: "crop" resizes every image to `image_size`; "native" fits it inside in its own
            aspect and pads the batch, with a mask.
        pad_to: padded heights and widths are multiples of this, the model's patch size.
        batch_size: images per batch and process.
        val_fraction: share of every class held out of train as val where the dataset has none, and
            before that as test where it has no splits.
        classes: names, or a file with one a line, that restrict and order the classes; or None.
        mean, std: of the three channels, for pixels in [0, 1].
        augment: of training images.
        seed: of order and augmentation; what is held out does not depend on it.
        workers: processes that prepare the same batches; 0: this one, "auto": one a core, to 8.
        cache: decode a split once, into RAM, before its first use.
        cache_limit_gb: a split that would take more is decoded image by image after all.
        check: of images before training: "refuse" names unreadable ones and ends the run, "skip"
            names and leaves them out; None: the first one in a batch ends the run.

    Attributes:
        evaluated_split: what Lightning's test loop reads, "test" by default.
    """

    def __init__(
        self,
        *,
        dataset: Callable[..., Dataset],
        root: str | Path | None = None,
        image_size: int | Sequence[int],
        resize: str,
        pad_to: int,
        batch_size: int,
        val_fraction: float,
        classes: str | Path | Sequence[str] | None,
        mean: Sequence[float],
        std: Sequence[float],
        augment: Augment,
        seed: int,
        workers: int | str,
        cache: bool,
        cache_limit_gb: float,
        check: str | None,
    ) -> None:
        super().__init__()
        size = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
        is_size = len(size) == 2 and all(isinstance(side, int) and side > 0 for side in size)
        counts = workers == "auto" or (isinstance(workers, int) and workers >= 0)
        for key, value, holds, rule in (
            ("resize", resize, resize in _RESIZES, " or ".join(_RESIZES)),
            ("check", check, check in ("refuse", "skip", None), "refuse, skip or null"),
            ("workers", workers, counts, ">= 0 or auto"),
            ("val_fraction", val_fraction, 0 <= val_fraction < 1, "in [0, 1)"),
            ("batch_size", batch_size, batch_size >= 1, ">= 1"),
            ("pad_to", pad_to, pad_to >= 1, ">= 1"),
            ("image_size", image_size, is_size, "a side or [height, width] in pixels"),
            ("mean", mean, len(mean) == 3, "three numbers, one a channel"),
            ("std", std, len(std) == 3 and min(std) > 0, "three numbers above 0, one a channel"),
        ):
            if not holds:
                raise UserError(f"data.{key} must be {rule}, got {value}")
        if resize == "native" and (cache or augment.scale):
            raise UserError(
                "data.resize=native keeps the shape of each image, but a cache or a random resized "
                "crop does not; set data.cache=false data.augment.scale=null"
            )

        self.root = None if root is None else Path(root).expanduser().absolute()
        self.dataset = dataset() if self.root is None else dataset(root=self.root)
        self.image_size = size
        self.mean, self.std = tuple(mean), tuple(std)
        self.batch_size, self.pad_to, self.workers = batch_size, pad_to, workers
        self.augment, self.seed = augment, seed
        self.val_fraction, self.check = val_fraction, check
        self.cache, self.cache_limit_gb = cache, cache_limit_gb
        self.evaluated_split = "test"
        self._fit = _RESIZES[resize](size)
        self._wanted = classes
        self._known: tuple[str, ...] | None = None
        self._listed: Splits | None = None
        self._prepared: dict[str, Images] = {}
        self._train: Loader | None = None
        self._position: dict[str, int] = {}  # where a resumed run begins

    def prepare_data(self) -> None:
        """Download and unpack what is missing. Lightning calls this in one process per machine."""
        self.dataset.prepare()

    def setup(self, stage: str | None = None) -> None:
        """List all images, and decode or check those of a stage: fit, validate or test."""
        splits = {"fit": ["train", "val"], "validate": ["val"], "test": [self.evaluated_split]}
        for split in filter(self.has_split, splits[stage] if stage else []):
            self._ready(split)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the labels."""
        return self._list().classes

    @property
    def counts(self) -> dict[str, int]:
        """Images in train, val and test, as far as there are any."""
        images = {**self._list().images, **self._prepared}
        return {name: len(images[name]) for name in ("train", "val", "test") if name in images}

    def has_split(self, split: str) -> bool:
        """Whether there are images in train, val, test, or `all` of a folder without splits."""
        return split in self._list().images

    def select_classes(self, names: Sequence[str]) -> None:
        """Number the classes as a checkpoint does: `names`, in their order; see `renumber`."""
        self._known, self._listed, self._prepared = tuple(names), None, {}

    def description(self) -> dict[str, list]:
        """What a checkpoint must know of its data, in plain containers."""
        normal = {"mean": list(self.mean), "std": list(self.std)}
        return {"classes": list(self.classes), "image_size": list(self.image_size), **normal}

    def loader(self, split: str, *, augment: bool | None = None) -> Loader:
        """The batches of a split in this process.

        Args:
            split: train, val, test or all. Raises `UserError` where this dataset has no such split.
            augment: shuffle, augment and drop what fills no batch, by default for train alone;
                False gives every image once, in order.
        """
        if not self.has_split(split):
            splits = ", ".join(self._list().images)
            raise UserError(f"split={split} is not in this dataset; it has {splits}")
        training = split == "train" if augment is None else augment
        images, augmentation = self._ready(split), self.augment if training else UNCHANGED
        how = {"mean": self.mean, "std": self.std, "seed": self.seed, "pad_to": self.pad_to}
        batches = Batches(images, fit=self._fit, augment=augmentation, **how)
        seed, (rank, world) = self.seed if training else None, rank_and_world()
        order = Order(len(images), batch_size=self.batch_size, seed=seed, rank=rank, world=world)
        processes = self.trainer.num_devices if self.trainer else 1
        auto = self.workers == "auto"
        workers = min(8, suggested_max_num_workers(processes)) if auto else self.workers
        return Loader(batches, order, workers=workers)

    def train_dataloader(self) -> Loader:
        self._train = self.loader("train")
        self.load_state_dict(self._position)
        return self._train

    def val_dataloader(self) -> Loader | list[Loader]:
        """Without a val split an empty list: Lightning's way to have nothing to validate."""
        return self.loader("val") if self.has_split("val") else []

    def test_dataloader(self) -> Loader:
        return self.loader(self.evaluated_split, augment=False)

    def state_dict(self) -> dict[str, int]:
        """The position in the training images, which Lightning keeps in checkpoints."""
        return {} if self._train is None else self._train.state_dict()

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Called before or after `train_dataloader`, depending on the strategy."""
        self._position = state_dict
        if self._train is not None and state_dict:
            self._train.load_state_dict(state_dict)

    def _list(self) -> Splits:
        """Read the dataset once, number its classes and hold out the splits that it lacks."""
        if self._listed is None:
            place = str(self.root or type(self.dataset).__name__)
            wanted = read_names(self._wanted)
            found = renumber(self.dataset.read(), wanted, self._known, place=place)
            self._listed = Splits(found.classes, hold_out(found.images, self.val_fraction))
            if not self._listed.images:
                raise UserError(f"{place} has no images of the classes {some(found.classes)}")
            self._report_splits(self._listed)
        return self._listed

    def _report_splits(self, listed: Splits) -> None:
        """Log what may surprise: no test or val split, classes without training images."""
        if "test" not in listed.images and "val" in listed.images:
            _info("there is no test split: evaluation uses val")
        if "train" in listed.images and self._known is None:
            if "val" not in listed.images:
                fraction = f"data.val_fraction={self.val_fraction:g}"
                _warn("there is no val split, and %s holds no image out for one", fraction)
            seen = listed.images["train"].labels.bincount(minlength=len(listed.classes))
            empty = [name for name, count in zip(listed.classes, seen, strict=True) if not count]
            if empty:
                _warn("%d classes have no training images: %s", len(empty), some(empty))

    def _ready(self, split: str) -> Images:
        """The images of a split, decoded or checked once, less those that are skipped."""
        if split not in self._prepared:
            images, errors = self._decode_or_check(split)
            if errors and self.check != "skip":
                raise UserError(
                    f"{len(errors)} images in {split} cannot be read: {some(errors.values())}; "
                    "repair or remove them, or leave them out with data.check=skip"
                )
            for message in errors.values():
                _warn("skipped an image that cannot be read: %s", message)
            if errors:
                _warn("skipped %d of %d images in %s", len(errors), len(images), split)
                kept = [index for index in range(len(images)) if index not in errors]
                images = images[torch.tensor(kept, dtype=torch.int64)]
            self._prepared[split] = images
        return self._prepared[split]

    def _decode_or_check(self, split: str) -> tuple[Images, dict[int, str]]:
        """The images of a split, and the errors of its unreadable ones by index."""
        images = self._list().images[split]
        gigabytes = len(images) * 3 * prod(self.image_size) / 1e9
        if self.cache and gigabytes <= self.cache_limit_gb:
            return decode_all(images, self._fit, title=f"decoding {split}")
        if self.cache:
            limit = f"data.cache_limit_gb={self.cache_limit_gb:g}: decoded one by one"
            _info("%s would take %.1f GB of RAM, above %s", split, gigabytes, limit)
        if self.check is None or images.in_memory:
            return images, {}
        return images, check_readable(images, title=f"checking {split}")
