"""Means over images, whatever batches they came in."""

import pytest
import torch

from vitrail.training.means import Means


def test_a_mean_is_over_images_and_begins_anew_once_it_is_taken():
    values, means = torch.arange(7.0), Means()
    for batch in values.split(3):
        means.add("loss", batch.mean(), len(batch))
    mean, images = means.take()["loss"]
    assert (mean.item(), images) == (pytest.approx(values.mean().item()), 7)
    assert means.take() == {}
    means.add("loss", torch.tensor(5.0), 2)
    assert means.take() == {"loss": (torch.tensor(5.0), 2)}


def test_each_has_its_own_images():
    means = Means()
    means.add("loss", torch.tensor(1.0), 4)
    means.add("loss", torch.tensor(2.0), 4)
    means.add("acc", torch.tensor(0.5), 4)
    assert {name: images for name, (_, images) in means.take().items()} == {"loss": 8, "acc": 4}
