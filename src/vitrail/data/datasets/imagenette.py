"""Imagenette (fast.ai): ten easy classes of ImageNet, 9,469 + 3,925 photographs."""

from dataclasses import dataclass
from pathlib import Path

from vitrail.data.archive import Archive
from vitrail.data.folders import folder_names, read_class_folders
from vitrail.data.images import Splits
from vitrail.errors import UserError

# By the shorter side; addresses and checksums are those of torchvision.datasets.Imagenette.
_URL = "https://s3.amazonaws.com/fast-ai-imageclas/"
_ARCHIVES = {
    "160px": Archive(
        _URL + "imagenette2-160.tgz", "e793b78cc4c9e9a4ccc0c1155377a412", "imagenette2-160", "train"
    ),
    "320px": Archive(
        _URL + "imagenette2-320.tgz", "3df6f0d01a2c9592104656642f5e78a3", "imagenette2-320", "train"
    ),
    "full": Archive(
        _URL + "imagenette2.tgz", "fe2fc210e6bb7c5664d602c3cd71e612", "imagenette2", "train"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Imagenette:
    """Classes are WordNet ids such as n01440764, as in ImageNet; splits are train and val.

    Args:
        root: holds `imagenette2-160` (or that of another size) or the archive, or is that folder.
        size: of the photographs: 160px, 320px or full.
        download: fetch the archive when neither is there.
    """

    root: Path
    size: str
    download: bool

    def __post_init__(self) -> None:
        if self.size not in _ARCHIVES:
            raise UserError(
                f"size={self.size} of Imagenette is not published; use {', '.join(_ARCHIVES)}"
            )

    def prepare(self) -> None:
        _ARCHIVES[self.size].prepare(self.root, download=self.download)

    def read(self) -> Splits:
        folder = _ARCHIVES[self.size].find(self.root)
        classes = folder_names(folder / "train")
        return Splits(
            tuple(classes),
            {split: read_class_folders(folder / split, classes) for split in ("train", "val")},
        )
