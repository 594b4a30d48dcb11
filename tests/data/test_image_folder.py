"""Folders as people have them."""

import logging

import pytest
import torch

from vitrail.data.datasets.image_folder import ImageFolder


@pytest.fixture
def untidy(paint, paint_folder, tmp_path):
    """Classes a and b with two true images each, an empty c, and what programs leave around."""
    paint_folder(tmp_path, ["a", "b"], 1)
    paint(tmp_path / "a" / "y.JPEG")
    paint(tmp_path / "b" / "deeper" / "z.webp")
    paint(tmp_path / ".ipynb_checkpoints" / "copy.png")
    paint(tmp_path / "b" / ".thumbnails" / "small.png")
    (tmp_path / "c").mkdir()
    (tmp_path / ".DS_Store").write_text("junk")
    (tmp_path / "a" / "._x.png").write_text("junk")
    (tmp_path / "a" / "notes.txt").write_text("junk")
    return tmp_path


def file_names(images):
    return sorted(images.path(index).rsplit("/", 1)[1] for index in range(len(images)))


def test_hidden_and_other_files_are_passed_over_and_nothing_else(untidy):
    classes, splits = ImageFolder(root=untidy).read()
    assert classes == ("a", "b", "c")
    assert file_names(splits["all"]) == ["0.png", "0.png", "y.JPEG", "z.webp"]
    assert splits["all"].labels.tolist() == [0, 0, 1, 1]


def test_a_class_without_images_is_kept_and_named(untidy, build, caplog):
    data = build("image_folder", f"data.root={untidy}")
    data.setup("fit")
    assert data.classes == ("a", "b", "c")
    assert "1 classes have no training images: c" in caplog.text


def test_a_folder_that_nobody_had_split_is_split_by_class(build_folder):
    data = build_folder(["a", "b"], 20, "data.image_size=4")
    data.setup("fit")
    assert data.counts == {"train": 32, "val": 4, "test": 4}
    labels = torch.cat([batch.labels for batch in data.loader("test")])
    assert labels.bincount().tolist() == [2, 2]
    train, val, test, every = (set(file_paths(data, s)) for s in ("train", "val", "test", "all"))
    assert train | val | test == every
    assert len(every) == sum(len(batch.labels) for batch in data.loader("all")) == 40


def file_paths(data, split):
    images = data.loader(split).batches.images
    return [images.path(index) for index in range(len(images))]


def test_train_and_test_have_val_held_out_of_train_whatever_the_seed(build_folder):
    folders = ["train/a", "train/b", "test/a", "test/b"]
    data, other = (build_folder(folders, 10, f"data.seed={seed}") for seed in (0, 7))
    assert data.counts == {"train": 18, "val": 2, "test": 20}
    assert all("/train/" in path for path in file_paths(data, "val"))
    assert file_paths(data, "val") == file_paths(other, "val")


def test_train_and_val_say_that_evaluation_uses_val(build_folder, caplog):
    data = build_folder(["train/a", "val/a"], 3)
    with caplog.at_level(logging.INFO):
        assert data.counts == {"train": 3, "val": 3}
    assert "there is no test split: evaluation uses val" in caplog.text
    with pytest.raises(ValueError, match=r"split=test is not in this dataset; it has train, val"):
        data.loader("test")


def test_classes_of_all_splits_are_numbered_together(build_folder):
    data = build_folder(["train/a", "train/c", "test/b", "test/c"], 2)
    assert data.classes == ("a", "b", "c")
    assert [batch.labels.tolist() for batch in data.loader("test")] == [[1, 1, 2, 2]]


def test_one_image_a_class_is_all_training(build_folder, caplog):
    data = build_folder(["a", "b", "c"], 1)
    assert data.counts == {"train": 3}
    assert "there is no val split, and data.val_fraction=0.1 holds no image out" in caplog.text
    assert data.val_dataloader() == []


def test_a_folder_without_images_says_what_it_looked_for(build, tmp_path):
    (tmp_path / "train" / "a").mkdir(parents=True)
    (tmp_path / "train" / "a" / "x.heic").write_text("")
    with pytest.raises(ValueError, match=r"train has no images in folders named after classes"):
        build("image_folder", f"data.root={tmp_path}").setup("fit")


def test_a_relative_root_is_found_from_the_folder_of_the_start(
    build, paint_folder, tmp_path, monkeypatch
):
    paint_folder(tmp_path / "pictures", ["train/a", "val/a"], 2)
    monkeypatch.chdir(tmp_path)
    data = build("image_folder", "data.root=pictures")
    monkeypatch.chdir("/")
    assert data.root == tmp_path / "pictures"
    assert data.counts == {"train": 2, "val": 2}
