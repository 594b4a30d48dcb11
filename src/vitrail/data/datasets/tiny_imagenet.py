"""Tiny ImageNet (Stanford CS231n): 200 classes, 500 + 50 images of 64 x 64 each."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from vitrail.data.archive import Archive
from vitrail.data.images import Images, Splits, folder_names, read_class_folders


@dataclass(frozen=True, kw_only=True)
class TinyImageNet:
    """Classes are WordNet ids; splits are train and val (its test images have no published labels).

    The layout is its own: `train/<id>/images/*.JPEG`, `val/images/*.JPEG` and
    `val/val_annotations.txt`. With folders removed from `train`, it is a dataset of the classes
    that are left.

    Args:
        root: holds `tiny-imagenet-200` or the archive, or is that folder.
        download: fetch the archive when neither is there.
    """

    root: Path
    download: bool

    archive: ClassVar[Archive] = Archive(
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        "90528d7ca1a48142e341f4ef8d21d0de",
        "tiny-imagenet-200",
        mark="val/val_annotations.txt",
    )

    def prepare(self) -> None:
        self.archive.prepare(self.root, download=self.download)

    def read(self) -> Splits:
        folder = self.archive.find(self.root)
        classes = folder_names(folder / "train")
        train = read_class_folders(folder / "train", classes)
        return Splits(tuple(classes), {"train": train, "val": _annotated(folder / "val", classes)})


def _annotated(folder: Path, classes: list[str]) -> Images:
    """The validation images of `classes`, by lines of name, class and a box with tabs between."""
    rows = [line.split("\t") for line in (folder / "val_annotations.txt").read_text().splitlines()]
    label = {name: index for index, name in enumerate(classes)}
    known = [(folder / "images" / row[0], label[row[1]]) for row in rows if row[1] in label]
    return Images.from_files([path for path, _ in known], [label for _, label in known])
