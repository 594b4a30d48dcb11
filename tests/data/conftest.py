"""Small datasets on disk in the layouts of the real ones, and data built from configs."""

import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig
from PIL import Image

from vitrail.data.images import Images
from vitrail.data.module import ImageData

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture
def config() -> Callable[..., DictConfig]:
    """`config("cifar10", "data.batch_size=4", …)`: the node of a dataset, overridden."""

    def composed(name: str, *overrides: str) -> DictConfig:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            return compose(f"data/{name}", ["+seed=0", *overrides]).data

    return composed


@pytest.fixture
def build(config: Callable[..., DictConfig]) -> Callable[..., ImageData]:
    """`build("cifar10", "data.batch_size=4", …)`: the data of a config."""
    return lambda name, *overrides: instantiate(config(name, *overrides))


@pytest.fixture
def paint() -> Callable[..., Path]:
    """Write an image file; its pixels are noise of a seed, or those given."""

    def write(path: Path, height: int = 12, width: int = 16, *, seed: int = 0) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(pixels).save(path)
        return path

    return write


@pytest.fixture
def paint_folder(paint: Callable[..., Path]) -> Callable[..., Path]:
    """`paint_folder(root, ["train/a", "train/b"], 3)`: three images in each folder."""

    def write(root: Path, folders: Sequence[str], images: int, **size: int) -> Path:
        for place, folder in enumerate(folders):
            for image in range(images):
                paint(root / folder / f"{image}.png", **size, seed=100 * place + image)
        return root

    return write


@pytest.fixture
def build_folder(build, paint_folder, tmp_path) -> Callable[..., ImageData]:
    """`build_folder(["train/a", …], 3, "data.seed=1", …)`: data of three images in each folder."""

    def painted(folders: Sequence[str], images: int, *overrides: str) -> ImageData:
        paint_folder(tmp_path, folders, images)
        return build("image_folder", f"data.root={tmp_path}", "data.workers=0", *overrides)

    return painted


@pytest.fixture
def noise_images() -> Callable[..., Images]:
    """`noise_images(n, height, width)`: images in RAM, image i of class i % 2."""

    def make(count: int, height: int = 6, width: int = 10) -> Images:
        random = torch.Generator().manual_seed(0)
        pixels = torch.randint(0, 256, (count, 3, height, width), generator=random)
        return Images(pixels.to(torch.uint8), torch.arange(count) % 2)

    return make


def write_cifar(root: Path, *, hundred: bool = False, images: int = 4) -> Path:
    """A folder in the format of the official Python archive, with `images` images a file.

    Pixel values tell where an image comes from: file f, image i is filled with 10·f + i.
    """
    folder = root / ("cifar-100-python" if hundred else "cifar-10-batches-py")
    folder.mkdir(parents=True)
    files = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    for file, name in enumerate(["train", "test"] if hundred else files):
        values = (10 * file + np.arange(images)).astype(np.uint8)
        content = {"batch_label": name, "data": np.repeat(values[:, None], 3 * 32 * 32, axis=1)}
        if hundred:
            fine = [(7 * i) % 100 for i in range(images)]
            content |= {"coarse_labels": [0] * images, "fine_labels": fine}
        else:
            content["labels"] = [i % 10 for i in range(images)]
        _dump(folder / name, content)
    if hundred:
        _dump(folder / "meta", {"fine_label_names": [f"fine_{i}" for i in range(100)]})
    else:
        names = ["airplane", "automobile", *(f"name_{i}" for i in range(2, 10))]
        _dump(folder / "batches.meta", {"label_names": names, "num_vis": 3072})
    return folder


def _dump(path: Path, content: dict[str, Any]) -> None:
    # The published files come from Python 2, an early pickle protocol and numpy's old module names.
    data = pickle.dumps(content, protocol=2)
    path.write_bytes(data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))


def write_tiny_imagenet(root: Path, paint: Callable[..., Path]) -> Path:
    """A folder in Tiny ImageNet's layout with two of its classes in train, and three in val."""
    folder = root / "tiny-imagenet-200"
    for place, wnid in enumerate(("n02124075", "n01641577")):
        for image in range(3):
            name = f"{wnid}_{image}.JPEG"
            paint(folder / "train" / wnid / "images" / name, 8, 8, seed=10 * place + image)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
    lines = []
    for image, wnid in enumerate(("n01641577", "n99999999", "n02124075")):
        paint(folder / "val" / "images" / f"val_{image}.JPEG", 8, 8, seed=50 + image)
        lines.append(f"val_{image}.JPEG\t{wnid}\t0\t0\t7\t7\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "test" / "images").mkdir(parents=True)
    return folder


@pytest.fixture
def packed() -> Callable[[Path, Path], Path]:
    """`packed(folder, archive)`: pack a folder the way its archive holds it, and remove nothing."""

    def pack(folder: Path, archive: Path) -> Path:
        kind = "zip" if archive.suffix == ".zip" else "gztar"
        made = shutil.make_archive(str(archive.with_name("made")), kind, folder.parent, folder.name)
        return Path(made).rename(archive)

    return pack


@pytest.fixture
def official_cifar() -> Callable[..., Path]:
    return write_cifar


@pytest.fixture
def write_dataset(
    paint: Callable[..., Path], paint_folder: Callable[..., Path]
) -> Callable[[str, Path], Path]:
    """`write_dataset("cifar10", root)`: a small dataset in the layout that its config expects."""

    def write(name: str, root: Path) -> Path:
        if name.startswith("cifar"):
            return write_cifar(root, hundred=name == "cifar100")
        if name == "tiny_imagenet":
            return write_tiny_imagenet(root, paint)
        if name == "imagenette":
            folders = ["train/n01440764", "train/n03888257", "val/n01440764", "val/n03888257"]
            return paint_folder(root / "imagenette2-160", folders, 2)
        if name == "image_folder":
            return paint_folder(root, ["train/a", "train/b", "test/a"], 2)
        return root

    return write
