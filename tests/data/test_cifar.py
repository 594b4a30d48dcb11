"""CIFAR's official Python archives."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.data.datasets.cifar import CIFAR10, CIFAR100
from vitrail.errors import UserError


def test_the_official_folder_is_read_file_by_file_in_order(official_cifar, tmp_path):
    folder = official_cifar(tmp_path)
    classes, splits = CIFAR10(root=tmp_path, download=False).read()
    assert CIFAR10(root=folder, download=False).read().classes == classes
    assert classes[0] == "airplane"
    assert len(classes) == 10
    train, test = splits["train"], splits["test"]
    values = [10 * file + i for file in range(5) for i in range(4)]
    assert train.source[:, 0, 0, 0].tolist() == values
    assert train.labels.tolist() == [0, 1, 2, 3] * 5
    assert test.source.shape == (4, 3, 32, 32)
    assert test.source[:, 0, 0, 0].tolist() == [50, 51, 52, 53]


def test_rows_come_before_columns_and_red_before_green(official_cifar, tmp_path):
    folder = official_cifar(tmp_path)
    content = pickle.loads((folder / "test_batch").read_bytes(), encoding="latin1")
    content["data"] = np.arange(4 * 3072).reshape(4, 3072).astype(np.uint8)
    (folder / "test_batch").write_bytes(pickle.dumps(content))
    image = CIFAR10(root=tmp_path, download=False).read().images["test"].source[0]
    assert image[0, 0].tolist() == list(range(32))
    assert int(image[1, 0, 0]) == 1024 % 256
    assert int(image[0, 1, 0]) == 32


def test_cifar100_has_the_fine_classes(official_cifar, tmp_path):
    official_cifar(tmp_path, hundred=True)
    classes, splits = CIFAR100(root=tmp_path, download=False).read()
    assert classes[7] == "fine_7"
    assert len(classes) == 100
    assert splits["train"].labels.tolist() == [0, 7, 14, 21]


@pytest.mark.parametrize("content", [None, b"", b"not a pickle", "cut short"])
def test_a_missing_or_damaged_file_is_named(content, official_cifar, tmp_path):
    path = official_cifar(tmp_path) / "data_batch_2"
    whole = path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_bytes(whole[:2000] if content == "cut short" else content)
    problem = "is missing; remove its folder" if content is None else "is not a CIFAR file"
    with pytest.raises(UserError, match=f"data_batch_2 {problem}"):
        CIFAR10(root=tmp_path, download=False).read()


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickle_that_would_run_code_is_refused(official_cifar, tmp_path):
    folder = official_cifar(tmp_path)
    (folder / "data_batch_1").write_bytes(pickle.dumps({"data": Trap(tmp_path / "sprung")}))
    with pytest.raises(ValueError, match=r"data_batch_1 is not a CIFAR file .*it asks for"):
        CIFAR10(root=tmp_path, download=False).read()
    assert not (tmp_path / "sprung").exists()


def test_validation_is_held_out_of_train_and_test_is_left_alone(build, official_cifar, tmp_path):
    official_cifar(tmp_path, images=20)
    data = build("cifar10", f"data.root={tmp_path}")
    data.setup("fit")
    assert data.counts == {"train": 90, "val": 10, "test": 20}
    held = torch.cat([batch.labels for batch in data.loader("val")])
    assert held.bincount().tolist() == [1] * 10
