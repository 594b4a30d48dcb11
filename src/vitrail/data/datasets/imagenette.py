"""Imagenette (fast.ai): ten easy classes of ImageNet, 9,469 + 3,925 photographs."""

from dataclasses import dataclass
from pathlib import Path

from vitrail.data.archive import Archive
from vitrail.data.images import Splits, folder_names, read_class_folders
from vitrail.errors import UserError

# By the shorter side; addresses and checksums are those of torchvision.datasets.Imagenette.
_ARCHIVES = {
    size: Archive(f"https://s3.amazonaws.com/fast-ai-imageclas/{folder}.tgz", md5, folder, "train")
    for size, folder, md5 in (
        ("160px", "imagenette2-160", "e793b78cc4c9e9a4ccc0c1155377a412"),
        ("320px", "imagenette2-320", "3df6f0d01a2c9592104656642f5e78a3"),
        ("full", "imagenette2", "fe2fc210e6bb7c5664d602c3cd71e612"),
    )
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
            sizes = ", ".join(_ARCHIVES)
            raise UserError(f"data.dataset.size must be one of {sizes}, got {self.size}")

    def prepare(self) -> None:
        _ARCHIVES[self.size].prepare(self.root, download=self.download)

    def read(self) -> Splits:
        folder = _ARCHIVES[self.size].find(self.root)
        classes = folder_names(folder / "train")
        splits = ("train", "val")
        images = {split: read_class_folders(folder / split, classes) for split in splits}
        return Splits(tuple(classes), images)
