"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 60,000 images of 32 x 32, from the Python archives."""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torchvision

from vitrail.data.archive import Archive
from vitrail.data.images import Images, Splits
from vitrail.errors import UserError


def _archive(official: type[torchvision.datasets.CIFAR10]) -> Archive:
    return Archive(
        official.url, official.tgz_md5, official.base_folder, mark=official.meta["filename"]
    )


@dataclass(frozen=True, kw_only=True)
class CIFAR10:
    """50,000 training and 10,000 test images.

    Args:
        root: holds `cifar-10-batches-py` or the archive, or is that folder.
        download: fetch the archive when neither is there.
    """

    root: Path
    download: bool

    official: ClassVar[type[torchvision.datasets.CIFAR10]] = torchvision.datasets.CIFAR10
    archive: ClassVar[Archive] = _archive(official)
    label_key: ClassVar[str] = "labels"

    def prepare(self) -> None:
        self.archive.prepare(self.root, download=self.download)

    def read(self) -> Splits:
        folder = self.archive.find(self.root)
        meta = _unpickled(folder / self.official.meta["filename"], [self.official.meta["key"]])
        splits = {"train": self.official.train_list, "test": self.official.test_list}
        images = {split: self._images(folder, files) for split, files in splits.items()}
        return Splits(tuple(meta[self.official.meta["key"]]), images)

    def _images(self, folder: Path, files: Sequence[Sequence[str]]) -> Images:
        parts = [_unpickled(folder / name, ["data", self.label_key]) for name, _ in files]
        pixels = np.concatenate([part["data"] for part in parts]).reshape(-1, 3, 32, 32)
        labels = [label for part in parts for label in part[self.label_key]]
        return Images(torch.from_numpy(pixels), torch.tensor(labels))


class CIFAR100(CIFAR10):
    """The same numbers in 100 classes (the fine labels); the folder is `cifar-100-python`."""

    official = torchvision.datasets.CIFAR100
    archive = _archive(official)
    label_key = "fine_labels"


# What reading a damaged pickle, or another one, raises.
_DAMAGE = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    TypeError,
    ValueError,
)


class _ArrayUnpickler(pickle.Unpickler):
    """Builds only arrays and plain containers: a pickle can run any code."""

    _NEEDED = ("_reconstruct", "_frombuffer", "ndarray", "dtype", "encode")

    def find_class(self, module: str, name: str) -> Any:
        if name not in self._NEEDED or module.partition(".")[0] not in ("numpy", "_codecs"):
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


def _unpickled(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    """`keys` of a file of the archive. Raises `UserError` for a missing or damaged file."""
    way_out = "remove its folder to unpack the archive again"
    if not path.is_file():
        raise UserError(f"{path} is missing; {way_out}")
    try:
        with path.open("rb") as file:
            content = _ArrayUnpickler(file, encoding="latin1").load()
        return {key: content[key] for key in keys}
    except _DAMAGE as error:
        raise UserError(f"{path} is not a CIFAR file ({error!r}); {way_out}") from error
