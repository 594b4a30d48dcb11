"""Real images: they load, look like what they are, and decode without a stumble."""

import pytest
import torch

pytestmark = pytest.mark.real


def test_cifar_as_a_folder_has_its_counts_and_its_published_mean(build, real_data):
    data = build(
        "image_folder", f"data.root={real_data / 'cifar'}", "data.image_size=32", "data.workers=0",
        "data.batch_size=500", "data.classes=[cat,dog]", "data.mean=[0,0,0]", "data.std=[1,1,1]",
    )  # fmt: skip
    assert data.counts == {"train": 9000, "val": 1000, "test": 2000}
    images = torch.cat([batch.images for batch in data.loader("val")])
    assert images.shape == (1000, 3, 32, 32)
    assert torch.allclose(images.mean((0, 2, 3)), torch.tensor([0.49, 0.46, 0.41]), atol=0.03)


def test_tiny_imagenet_in_its_own_layout(build, real_data):
    data = build("tiny_imagenet", f"data.root={real_data / 'tiny'}", "data.batch_size=100")
    data.prepare_data()
    assert len(data.classes) == 20
    assert data.counts == {"train": 10_000, "val": 1000}
    labels = torch.cat([batch.labels for batch in data.loader("val")])
    assert labels.bincount().tolist() == [50] * 20


@pytest.mark.parametrize("resize", ["crop", "native"])
def test_photographs_of_many_sizes_and_some_grey(resize, build, real_data):
    data = build(
        "image_folder", f"data.root={real_data / 'imagenet-samples'}", f"data.resize={resize}",
        "data.image_size=[96,128]", "data.augment.scale=null", "data.pad_to=16",
        "data.batch_size=10", "data.workers=0",
    )  # fmt: skip
    data.setup("fit")
    assert len(data.classes) == data.counts["train"] == 100
    for images, labels, valid in data.loader("train", augment=False):
        assert len(images) == len(labels) == 10
        assert images.isfinite().all()
        assert images.std() > 0.5
        assert images.shape[2] % 16 == images.shape[3] % 16 == 0
        assert (valid is None) == (resize == "crop")
