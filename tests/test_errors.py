"""Which errors are a person's input, told in one line, and which keep their traceback."""

from functools import partial

import numpy as np
import pytest
import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch.utils.data import DataLoader, Dataset

from vitrail.attention import Grid
from vitrail.cli import explain


def raised(function, *arguments) -> BaseException:
    """What calling the function raises, with its traceback."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011 (any error will do)
        function(*arguments)
    return caught.value


class Broken(Dataset):
    """One sample, and an error in its place."""

    def __init__(self, fail):
        self.fail = fail

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> None:
        self.fail()


def read_in_a_worker(fail) -> None:
    next(iter(DataLoader(Broken(fail), num_workers=1, multiprocessing_context="fork")))


def test_a_value_that_our_code_refuses_is_one_line_also_from_a_data_worker():
    line = explain(raised(Grid, 0, 0), [])
    assert "0" in line
    assert explain(raised(read_in_a_worker, partial(Grid, 0, 0)), []) == line


def test_an_error_of_a_librarys_depths_is_a_bug_also_in_a_data_worker():
    shapes = partial(np.reshape, np.zeros(3), (2, 2))
    for function in (shapes, partial(read_in_a_worker, shapes), partial(torch.ones(3).view, 2, 2)):
        assert explain(raised(function), []) is None


def test_a_missing_file_and_lightnings_complaints_about_a_configuration_are_one_line(tmp_path):
    path = tmp_path / "classes.txt"
    assert explain(raised(path.read_text), []) == f"{path}: No such file or directory"
    error = MisconfigurationException("`devices=9`\n  is too many")
    assert explain(error, []) == "`devices=9` is too many"
