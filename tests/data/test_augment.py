"""Random images: each by its own draw, and what they are compared with."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from vitrail.data.augment import Augment
from vitrail.data.draws import draws_for, seeded
from vitrail.data.resize import RandomResizedCrop


def augment(**knobs):
    off = {"scale": None, "auto": None, "crop_padding": None, "padding_mode": "constant"}
    return Augment(**off | {"flip": False, "erase": 0.0} | knobs)


def draw(count=4000, seed=3, epoch=1):
    return draws_for(seed, epoch, np.arange(count))


@pytest.fixture
def draws():
    return draw()


def test_draws_are_uniform_and_do_not_depend_on_each_other(draws):
    numbers = np.stack(draws[:-2])
    assert np.all((numbers >= 0) & (numbers < 1))
    assert np.allclose(numbers.mean(1), 0.5, atol=0.02)
    assert np.allclose(numbers.var(1), 1 / 12, atol=0.005)
    assert np.abs(np.corrcoef(numbers) - np.eye(len(numbers))).max() < 0.06
    neighbours = np.corrcoef(numbers[:, :-1].ravel(), numbers[:, 1:].ravel())[0, 1]
    assert abs(neighbours) < 0.02
    assert len(set(draws.seed.tolist())) == 4000


def test_a_draw_belongs_to_the_image_and_not_to_its_place_in_the_batch(draws):
    alone = draws_for(3, 1, np.array([17]))
    assert all(numbers[17] == number for numbers, number in zip(draws, alone, strict=True))


@pytest.mark.parametrize("other", [{"seed": 4, "epoch": 1}, {"seed": 3, "epoch": 2}])
def test_another_seed_or_epoch_draws_anew(other, draws):
    assert not np.isin(draw(**other).flip, draws.flip).any()


@pytest.mark.parametrize("shape", [(60, 90), (90, 60), (24, 32)], ids=str)
def test_the_random_resized_crop_is_torchvisions_pixel_for_pixel(shape):
    decoded = torch.randint(256, (*shape, 3), dtype=torch.uint8).permute(2, 0, 1)
    for seed in range(8):
        crops = []
        for crop in (RandomResizedCrop((32, 48)), v2.RandomResizedCrop((32, 48))):
            with seeded(seed):
                crops.append(crop(decoded))
        assert torch.equal(*crops)


def test_seeded_code_leaves_the_global_generator_as_it_was():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    with seeded(99):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with seeded(99):
        assert torch.equal(torch.rand(3), inside)


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_a_random_crop_equals_a_padded_crop_of_each_image(mode, noise_images, draws):
    images = noise_images(9).source
    moved = augment(crop_padding=3, padding_mode=mode).whole_batch(images, draw(9))
    for index, image in enumerate(images):
        row, col = (int(share[index] * 7) for share in (draws.top, draws.left))
        padded = functional.pad(image, [3, 3, 3, 3], padding_mode=mode)
        assert torch.equal(moved[index], functional.crop(padded, row, col, 6, 10))


def test_a_crop_reaches_every_place_of_the_frame_about_equally(draws):
    image = torch.zeros(4000, 3, 2, 5, dtype=torch.uint8)
    image[:, :, 0, 0] = 1
    moved = augment(crop_padding=1).whole_batch(image, draws)
    places = moved[:, 0].sum(0).flatten()
    assert places.max() < 4000 / 9 * 1.2
    assert (places > 0).sum() == 2 * 2  # the others leave the image


@pytest.mark.parametrize("flip", [True, "alternate"])
def test_half_of_the_images_are_flipped_left_to_right(flip, noise_images, draws):
    image = noise_images(1).source.expand(4000, -1, -1, -1)
    flipped = augment(flip=flip).whole_batch(image, draws)
    which = (flipped != image).flatten(1).any(1)
    assert 0.47 < which.float().mean() < 0.53
    assert torch.equal(flipped[which], functional.horizontal_flip(image[which]))


def test_an_alternate_flip_flips_an_image_in_every_other_epoch(noise_images):
    image = noise_images(1).source.expand(400, -1, -1, -1)
    alternate = augment(flip="alternate")
    epochs = [alternate.whole_batch(image, draw(400, epoch=epoch)) for epoch in range(4)]
    for one, other in pairwise(epochs):
        assert torch.equal(one, other.flip(-1))


def test_erased_boxes_have_the_published_areas_and_their_own_places(draws):
    box = augment(erase=1.0).erased(torch.ones(4000, 1, 32, 48), draws)[:, 0] == 0
    area = box.flatten(1).float().mean(1)
    assert area.min() > 0.01
    assert area.max() < 0.36
    assert abs(area.mean() - (0.02 + 1 / 3) / 2) < 0.02
    assert box.any(0).all()
    assert (box.float().mean(0) < 0.5).all()
    rows, cols = box.any(2).sum(1), box.any(1).sum(1)
    assert torch.equal(rows * cols, box.flatten(1).sum(1))  # a rectangle


def test_erasing_turns_a_box_to_the_mean_in_its_share_of_the_images(draws):
    images = torch.ones(4000, 3, 8, 12)
    erased = augment(erase=0.25).erased(images.clone(), draws)
    touched = (erased == 0).flatten(1).any(1)
    assert 0.22 < touched.float().mean() < 0.28
    assert torch.equal(erased[:, 0], erased[:, 2])
    assert torch.equal(erased[~touched], images[~touched])


@pytest.mark.parametrize(
    "knob, value",
    [
        ("scale", [0.0, 1.0]), ("scale", [0.5]), ("scale", [0.9, 0.1]), ("auto", "autoaugment"),
        ("crop_padding", -1), ("padding_mode", "white"), ("flip", "always"), ("erase", 1.5),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused_by_name(knob, value):
    with pytest.raises(ValueError, match=rf"augment\.{knob} must be"):
        augment(**{knob: value})
