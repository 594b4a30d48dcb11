"""Images of any size that whole patches fill, and a sentence for the others."""

import pytest
import torch

from vitrail.attention import Grid
from vitrail.attention.positions.rope import Rope, RopeMixed
from vitrail.attention.positions.sincos import SinCos
from vitrail.model import ViT
from vitrail.model.stems import pair, patch_grid

from .small import SIZES, small_vit


@pytest.mark.parametrize(
    "image, patch, way_out",
    [
        (100, 16, "^image size 100x100 does not divide into patches of 16x16: .*; use 96 or 112, "),
        ((32, 100), 16, "100 is not a multiple of 16; use 96 or 112"),
        ((100, 32), 16, "100 is not a multiple of 16; use 96 or 112"),
        ((8, 8), 16, "8 is not a multiple of 16; use 16, or"),
        ((30, 32), (8, 4), "30 is not a multiple of 8; use 24 or 32"),
        ((0, 32), 8, "0 is not a multiple of 8; use 8, or"),
    ],
)
def test_the_side_that_does_not_fit_is_named(image, patch, way_out):
    with pytest.raises(ValueError, match=way_out):
        patch_grid(pair(image), pair(patch))


@pytest.mark.parametrize("patch", [0, -8, (8, 0)], ids=str)
def test_an_empty_patch_is_refused(patch):
    with pytest.raises(ValueError, match="patch_size must be >= 1 pixel, got"):
        ViT(**(SIZES | {"patch_size": patch}))


def test_32x40_in_patches_of_8_is_a_grid_of_4_rows_and_5_columns():
    assert patch_grid((32, 40), (8, 8)) == Grid(4, 5)
    model = small_vit(image_size=(32, 40))
    assert model.grid == Grid(4, 5, 1)
    assert model.pos_embed.shape == (1, 21, 24)
    assert model(torch.randn(2, 3, 32, 40)).shape == (2, 5)


def test_tokens_are_patches_read_row_by_row():
    model = small_vit(class_token=False, pool="avg", position=SinCos(), depth=1)
    images = torch.zeros(1, 3, 24, 32)
    images[:, :, 8:16, 24:32] = torch.randn(3, 8, 8)
    grid = Grid(3, 4)
    difference = model.tokens(images, grid) - model.tokens(torch.zeros(1, 3, 24, 32), grid)
    touched = difference.abs().sum(-1)[0].nonzero().flatten().tolist()
    assert touched == [1 * 4 + 3]


CONV = {"stem": "conv", "registers": 2, "pool": "avg"}
POSITIONS = [{"position": position} for position in (SinCos(), Rope(), RopeMixed())]


@pytest.mark.parametrize("options", [{}, *POSITIONS, CONV], ids=str)
@pytest.mark.parametrize("size", [(24, 32), (32, 24), (8, 8), (8, 64), (40, 40)], ids=str)
def test_one_model_takes_images_of_many_sizes(options, size):
    logits = small_vit(**options)(torch.randn(2, 3, *size))
    assert logits.shape == (2, 5)
    assert torch.isfinite(logits).all()


def test_an_image_of_a_size_that_does_not_divide_is_refused_in_the_forward_too():
    model = small_vit()
    with pytest.raises(ValueError, match=r"image size 24x30 .*use 24 or 32"):
        model(torch.randn(2, 3, 24, 30))


def test_a_model_is_not_the_same_for_an_image_and_its_transpose():
    model = small_vit(position=Rope(), pool="avg")
    images = torch.randn(1, 3, 32, 24)
    assert not torch.allclose(model(images), model(images.transpose(2, 3)), atol=1e-3)
