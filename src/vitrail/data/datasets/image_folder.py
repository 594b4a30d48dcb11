"""Any images in folders named after their classes."""

from dataclasses import dataclass
from pathlib import Path

from vitrail.data.images import EXTENSIONS, Dataset, Splits, folder_names, read_class_folders
from vitrail.errors import UserError

_SPLITS = ("train", "val", "test")


@dataclass(frozen=True, kw_only=True)
class ImageFolder(Dataset):
    """`root/<split>/<class>/…` for any of train, val and test; or `root/<class>/…`, not yet split.

    Classes are the folder names of all splits together, sorted. Hidden files and folders and files
    without an image's extension are ignored; folders below a class folder belong to the class.
    """

    root: Path

    def read(self) -> Splits:
        if not self.root.is_dir():
            raise UserError(
                f"data.root={self.root} is not a folder; give one with train/ and val/ or test/, "
                "or with one folder per class"
            )
        folders = {name: self.root / name for name in _SPLITS if (self.root / name).is_dir()}
        folders = folders or {"all": self.root}
        classes = sorted({name for folder in folders.values() for name in folder_names(folder)})
        images = {split: read_class_folders(folder, classes) for split, folder in folders.items()}
        for split, found in images.items():
            if not len(found):
                raise UserError(
                    f"{folders[split]} has no images in folders named after classes; "
                    f"image files end in {' '.join(EXTENSIONS)}"
                )
        return Splits(tuple(classes), images)
