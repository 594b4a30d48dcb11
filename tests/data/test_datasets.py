"""The contract that every dataset keeps; a new config or file is tested the moment it exists."""

from pathlib import Path

import pytest
import torch

import vitrail.data.datasets
from vitrail.data.datasets.imagenette import Imagenette
from vitrail.data.datasets.tiny_imagenet import TinyImageNet
from vitrail.errors import UserError

CONFIGS = Path(__file__).parents[2] / "configs" / "data"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
WITH_FILES = [name for name in NAMES if name not in ("digits", "synthetic")]


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def on_disk(name, build, config, write_dataset, tmp_path):
    """The dataset of a config, with its files in place."""
    write_dataset(name, tmp_path)
    root = [f"data.root={tmp_path}"] if "root" in config(name) else []
    return build(name, *root).dataset


def test_every_dataset_file_has_a_config(config):
    targets = [config(name).dataset._target_ for name in NAMES]
    files = Path(vitrail.data.datasets.__file__).parent.glob("[a-z]*.py")
    assert {target.split(".")[-2] for target in targets} == {path.stem for path in files}


def test_building_reads_nothing(name, build, config, tmp_path):
    absent = tmp_path / "absent"
    build(name, *([f"data.root={absent}"] if "root" in config(name) else []))
    assert not absent.exists()


@pytest.mark.parametrize("name", WITH_FILES)
def test_missing_files_are_one_line_that_says_what_to_put_where(name, build, tmp_path):
    data = build(name, f"data.root={tmp_path / 'absent'}")
    with pytest.raises(UserError) as error:
        data.setup("fit")
    assert str(tmp_path / "absent") in str(error.value)
    assert "\n" not in str(error.value)


def test_splits_hold_labelled_three_channel_images_in_the_same_order_every_time(on_disk):
    on_disk.prepare()
    (classes, splits), again = on_disk.read(), on_disk.read()
    assert len(set(classes)) == len(classes) > 1
    assert again.classes == classes
    assert set(splits) <= {"train", "val", "test", "all"}
    for split, images in splits.items():
        assert len(images) > 0
        assert images.labels.dtype == torch.int64
        assert 0 <= images.labels.min() <= images.labels.max() < len(classes)
        assert torch.equal(images.labels, again.images[split].labels)
        pixels = images.pixels(len(images) - 1)
        assert (pixels.dtype, pixels.ndim, pixels.shape[0]) == (torch.uint8, 3, 3)
        assert torch.equal(pixels, again.images[split].pixels(len(images) - 1))


def test_digits_are_stretched_to_the_whole_range_and_repeated_in_three_channels(build):
    classes, splits = build("digits").dataset.read()
    assert classes == tuple("0123456789")
    train = splits["train"].source
    assert (int(train.min()), int(train.max())) == (0, 255)
    assert torch.equal(train[:, 0], train[:, 2])
    assert {split: len(images) for split, images in splits.items()} == {"train": 1438, "test": 359}


def test_synthetic_images_are_of_any_size_and_their_classes_can_be_told_apart(build):
    data = build("synthetic", "data.image_size=[9,14]", "data.dataset.num_classes=3")
    splits = data.dataset.read()
    train, test = splits.images["train"], splits.images["test"]
    assert train.source.shape == (2048, 3, 9, 14)
    means = torch.stack([train.source[train.labels == label].float().mean(0) for label in range(3)])
    distance = (test.source.float()[:, None] - means).flatten(2).norm(dim=2)
    assert (distance.argmin(1) == test.labels).float().mean() > 0.99


def test_tiny_imagenet_is_read_by_its_annotations_and_works_with_some_of_its_classes(
    write_dataset, tmp_path
):
    write_dataset("tiny_imagenet", tmp_path)
    classes, splits = TinyImageNet(root=tmp_path, download=False).read()
    assert classes == ("n01641577", "n02124075")
    assert splits["train"].labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert splits["val"].labels.tolist() == [0, 1], "a third line is of a class that is not here"


def test_an_unknown_imagenette_size_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"dataset.size must be one of 160px, .* got 240px"):
        Imagenette(root=tmp_path, size="240px", download=False)
