"""What a dataset returns: class names, and the labelled images of each split."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from vitrail.data.decode import decode

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


@dataclass(frozen=True)
class Images:
    """The images of one split, in RAM or as files that are decoded one by one.

    Args:
        source: uint8 pixels (n, 3, H, W), or n paths as made by `from_files`.
        labels: int64 (n,), indices into the class names.
    """

    source: Tensor | np.ndarray
    labels: Tensor

    @classmethod
    def from_files(cls, paths: Sequence[str | Path], labels: Sequence[int]) -> "Images":
        # One array of bytes: a list of a million strings would be copied into every worker as its
        # reference counts are touched.
        encoded = np.array([os.fsencode(path) for path in paths], dtype=np.bytes_)
        return cls(encoded, torch.tensor(labels, dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, indices: Tensor) -> "Images":
        """The images at `indices` (int64), in that order."""
        source = self.source[indices if self.in_memory else indices.numpy()]
        return Images(source, self.labels[indices])

    @property
    def in_memory(self) -> bool:
        return isinstance(self.source, Tensor)

    def path(self, index: int) -> str:
        return os.fsdecode(self.source[index])

    def pixels(self, index: int) -> Tensor:
        """Image `index` as uint8 (3, h, w). Raises `UnreadableImage`."""
        return self.source[index] if self.in_memory else decode(self.path(index))


class Splits(NamedTuple):
    """Class names in label order, and images by split: any of train, val and test, or only `all`
    for a dataset that is not split yet."""

    classes: tuple[str, ...]
    images: Mapping[str, Images]


class Dataset(Protocol):
    """Where labelled images come from. Building one reads nothing; one with files takes `root`."""

    def prepare(self) -> None:
        """Download and unpack what is missing, if anything; in one process, before any `read`."""

    def read(self) -> Splits:
        """List every image; large ones as files. Raises `UserError`."""


def folder_names(parent: Path) -> list[str]:
    """The folders in `parent`, sorted, without hidden ones such as `.ipynb_checkpoints`."""
    folders = [entry.name for entry in os.scandir(parent) if entry.is_dir()]
    return sorted(name for name in folders if not name.startswith("."))


def read_class_folders(parent: Path, classes: Sequence[str]) -> Images:
    """The images below `parent/<class>/` of each class, labelled by its place in `classes`.

    Files count by their extension; hidden files and folders do not. A missing folder has no images.
    """
    by_class = [_image_files(parent / name) for name in classes]
    labels = [label for label, files in enumerate(by_class) for _ in files]
    return Images.from_files([path for files in by_class for path in files], labels)


def _image_files(folder: Path) -> list[str]:
    found = []
    for place, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        images = [name for name in files if name.lower().endswith(EXTENSIONS)]
        # A million Path objects would take longer than the walk.
        found += [f"{place}/{name}" for name in images if not name.startswith(".")]
    return sorted(found)
