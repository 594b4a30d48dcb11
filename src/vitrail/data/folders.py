"""Image files in one folder per class, told from all else that people and programs leave there."""

import os
from collections.abc import Sequence
from pathlib import Path

from vitrail.data.images import Images

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


def folder_names(parent: Path) -> list[str]:
    """The folders in `parent`, sorted, without hidden ones such as `.ipynb_checkpoints`."""
    return sorted(
        entry.name
        for entry in os.scandir(parent)
        if entry.is_dir() and not entry.name.startswith(".")
    )


def image_files(folder: Path) -> list[str]:
    """Every image below `folder`, by its extension; sorted, without hidden files and folders."""
    found = []
    for place, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [
            f"{place}/{name}"  # a million Path objects would take longer than the walk
            for name in files
            if name.lower().endswith(EXTENSIONS) and not name.startswith(".")
        ]
    return sorted(found)


def read_class_folders(parent: Path, classes: Sequence[str]) -> Images:
    """The images of `parent/<class>/`, labelled by the class's place in `classes`.

    A class without a folder has no images here.
    """
    by_class = [image_files(parent / name) for name in classes]
    labels = [label for label, files in enumerate(by_class) for _ in files]
    return Images.from_files([path for files in by_class for path in files], labels)
