"""Batches: equal for any number of workers, different for every image and epoch."""

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional

from vitrail.data.augment import UNCHANGED, Augment
from vitrail.data.batches import Batches
from vitrail.data.images import Images
from vitrail.data.resize import CenterCrop, FitInside

STRONG = {"scale": [0.2, 0.8], "auto": "trivial", "crop_padding": 3, "padding_mode": "constant"}
STRONG |= {"flip": True, "erase": 0.5}


@pytest.fixture
def strong(build, paint, tmp_path):
    """`strong("data.seed=1", …)`: 16 copies of one photograph, augmented by all there is."""
    for copy in range(16):
        paint(tmp_path / "train" / "a" / f"{copy:02}.png", 24, 32)
        paint(tmp_path / "val" / "a" / f"{copy:02}.png", 24, 32)
    knobs = [f"data.augment.{knob}={value}" for knob, value in STRONG.items()]
    knobs += [f"data.root={tmp_path}", "data.image_size=16", "data.batch_size=5", "data.workers=0"]
    return lambda *overrides: build("image_folder", *knobs, *overrides)


def two_epochs(data):
    loader = data.train_dataloader()
    epochs = []
    for number in range(2):
        loader.sampler.set_epoch(number)
        epochs.append(torch.cat([batch.images for batch in loader]))
    return torch.stack(epochs)


@pytest.mark.parametrize("cache", ["true", "false"])
def test_copies_of_one_image_all_differ_within_and_between_epochs(cache, strong):
    epochs = two_epochs(strong(f"data.cache={cache}"))
    assert epochs.shape == (2, 15, 3, 16, 16)
    assert len({image.numpy().tobytes() for image in epochs.flatten(0, 1)}) == 30


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize("cache", ["true", "false"])
def test_workers_change_nothing(cache, strong):
    alone, two, four = (
        two_epochs(strong(f"data.cache={cache}", f"data.workers={workers}"))
        for workers in (0, 2, 4)
    )
    assert torch.equal(alone, two)
    assert torch.equal(alone, four)


def test_a_second_run_is_identical_and_another_seed_is_not(strong):
    first, again, other = (two_epochs(strong(f"data.seed={seed}")) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_an_augmented_image_does_not_depend_on_the_batch_it_is_in(noise_images):
    batches = make(noise_images(12), augment=Augment(**{**STRONG, "scale": None}))
    together = batches[3, np.arange(12)].images
    for index in (0, 7, 11):
        assert torch.equal(batches[3, np.array([index])].images[0], together[index])


NORMAL = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.25, 0.3]}


def make(images, fit=None, augment=UNCHANGED, pad_to=1):
    fit = fit or CenterCrop((6, 10))
    return Batches(images, fit=fit, augment=augment, **NORMAL, seed=0, pad_to=pad_to)


def test_evaluation_is_pixels_less_mean_over_std(noise_images):
    images = noise_images(5)
    batch = make(images)[0, np.array([4, 1])]
    expected = functional.normalize(images.source[[4, 1]] / 255, **NORMAL)
    assert torch.allclose(batch.images, expected, atol=1e-6)
    assert batch.images.dtype == torch.float32
    assert batch.labels.tolist() == [0, 1]
    assert batch.valid is None


@pytest.mark.parametrize("height, width", [(1, 300), (300, 1), (7, 13), (40, 20), (6, 10)])
def test_any_shape_is_brought_to_one(height, width):
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    image[:, (height - 1) // 2 : height // 2 + 1, (width - 1) // 2 : width // 2 + 1] = 255
    cropped = CenterCrop((8, 12))(image)
    assert cropped.shape == (3, 8, 12)
    assert cropped[:, 3:5, 5:7].float().mean() > 0  # the middle stays in the middle


def test_cropping_takes_the_middle_and_the_whole_of_the_same_aspect(noise_images):
    columns = torch.arange(16, dtype=torch.uint8).expand(3, 4, 16)
    assert CenterCrop((4, 4))(columns)[0, 0].tolist() == [6, 7, 8, 9]
    image = noise_images(1).source[0]
    for size in ((6, 10), (12, 20), (3, 5)):
        resized = functional.resize(image, list(size), antialias=True)
        assert torch.equal(CenterCrop(size)(image), resized)


@pytest.mark.parametrize(
    "height, width, fitted",
    [(20, 40, (8, 16)), (40, 20, (8, 4)), (4, 4, (8, 8)), (1, 300, (1, 16))],
)
def test_fitting_inside_keeps_the_aspect(height, width, fitted):
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    assert FitInside((8, 16))(image).shape[1:] == fitted


@pytest.fixture
def of_many_shapes(paint, tmp_path):
    shapes = [(12, 16), (16, 12), (5, 16), (16, 16)]
    paths = [paint(tmp_path / f"{h}x{w}.png", h, w, seed=h + w) for h, w in shapes]
    return shapes, Images.from_files(paths, [0, 1, 0, 1])


@pytest.mark.parametrize("pad_to", [1, 4, 5])
def test_native_batches_are_padded_to_a_multiple_with_a_mask_of_what_is_real(
    pad_to, of_many_shapes
):
    shapes, images = of_many_shapes
    batch = make(images, fit=FitInside((16, 16)), pad_to=pad_to)[0, np.arange(4)]
    side = -(-16 // pad_to) * pad_to
    assert batch.images.shape == (4, 3, side, side)
    assert batch.valid.shape == (4, side, side)
    assert batch.valid.dtype == torch.bool
    for index, (height, width) in enumerate(shapes):
        assert batch.valid[index].sum() == height * width
        assert batch.valid[index, :height, :width].all()
        alone = make(images, fit=FitInside((16, 16)))[0, np.array([index])].images[0]
        assert torch.equal(batch.images[index, :, :height, :width], alone)
        assert (batch.images[index].masked_select(~batch.valid[index]) == 0).all()
    low = make(images, fit=FitInside((16, 16)), pad_to=2)[0, np.array([0, 2])]
    assert low.images.shape == (2, 3, 12, 16), "as large as the largest of the batch"


def test_a_native_image_is_mirrored_within_itself(of_many_shapes):
    shapes, images = of_many_shapes
    flip = Augment(**STRONG | {"scale": None, "auto": None, "crop_padding": None, "erase": 0.0})
    plain = make(images, fit=FitInside((16, 16)))[0, np.arange(4)]
    batch = make(images, fit=FitInside((16, 16)), augment=flip)[0, np.arange(4)]
    turned = 0
    for index, (height, width) in enumerate(shapes):
        image = batch.images[index, :, :height, :width]
        straight = plain.images[index, :, :height, :width]
        turned += int(torch.equal(image, straight.flip(-1)))
        assert torch.equal(image, straight) or torch.equal(image, straight.flip(-1))
    assert 0 < turned < 4
    assert torch.equal(batch.valid, plain.valid)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_image_ends_the_epoch_with_its_path_alone(workers, strong, tmp_path):
    bad = tmp_path / "train" / "a" / "07.png"
    bad.write_bytes(bad.read_bytes()[:200])
    data = strong("data.check=null", f"data.workers={workers}")
    # Not pytest.raises: it keeps the frames, and workers that are left to the garbage collector
    # take seconds to end.
    message = None
    try:
        list(data.train_dataloader())
    except ValueError as error:
        message = str(error)
    assert message == f"{bad} (image file is truncated)"
