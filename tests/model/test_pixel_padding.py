"""A padding mask on pixels: what lies in padding is as if it were not there."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.attention.positions.none import NoPosition
from vitrail.attention.positions.rope import Rope, RopeMixed
from vitrail.attention.positions.sincos import SinCos
from vitrail.model.vit import valid_patches

from .small import ON_CPU, logits_and_gradients, small_vit

FREE = {"none": NoPosition(), "sincos": SinCos(), "rope": Rope(), "rope_mixed": RopeMixed()}

each_backend = pytest.mark.parametrize("backend", ON_CPU)
each_pool = pytest.mark.parametrize("pool", ["token", "avg", "map"])


def padded(images: torch.Tensor, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images in the top left corner of larger ones full of rubbish, and which pixels are real."""
    batch, _, rows, cols = images.shape
    canvas = torch.randn(batch, 3, height, width) * 100
    canvas[:, :, :rows, :cols] = images
    valid = torch.zeros(batch, height, width, dtype=torch.bool)
    valid[:, :rows, :cols] = True
    return canvas, valid


@each_pool
@each_backend
@pytest.mark.parametrize("position", FREE.values(), ids=FREE.keys())
def test_a_padded_image_equals_itself_without_padding(position, backend, pool):
    model = small_vit(position=position, backend=backend, pool=pool, registers=2)
    images = torch.randn(2, 3, 16, 24)
    canvas, valid = padded(images, 32, 40)
    torch.testing.assert_close(model(canvas, valid), model(images), atol=1e-5, rtol=0)


@pytest.mark.parametrize("class_token", [False, True])
def test_images_of_different_sizes_share_a_batch(class_token):
    model = small_vit(position=Rope(), pool="avg", class_token=class_token)
    wide, tall = torch.randn(1, 3, 8, 32), torch.randn(1, 3, 24, 16)
    batch = [padded(image, 24, 32) for image in (wide, tall)]
    canvas, valid = (torch.cat(parts) for parts in zip(*batch, strict=True))
    expected = torch.cat([model(wide), model(tall)])
    torch.testing.assert_close(model(canvas, valid), expected, atol=1e-5, rtol=0)


def test_an_image_that_ends_inside_a_patch_equals_itself_filled_up_with_zeros():
    model = small_vit(position=SinCos())
    images = torch.randn(2, 3, 13, 21)
    canvas, valid = padded(images, 32, 40)
    filled = torch.nn.functional.pad(images, (0, 3, 0, 3))
    torch.testing.assert_close(model(canvas, valid), model(filled), atol=1e-5, rtol=0)


@each_pool
@each_backend
@pytest.mark.parametrize("rubbish", [float("nan"), float("inf"), 1e30])
def test_rubbish_in_padding_reaches_no_logit_and_no_gradient(backend, pool, rubbish):
    model = small_vit(backend=backend, pool=pool, registers=2, qk_norm=True, layer_scale=0.1)
    images = torch.randn(3, 3, 24, 32)
    valid = torch.ones(3, 24, 32, dtype=torch.bool)
    valid[0, :, 20:] = False
    valid[1] = False
    sides = []
    for filling in (0.0, rubbish):
        leaf = images.masked_fill(~valid[:, None], filling).requires_grad_()
        sides.append(logits_and_gradients(model, leaf, valid, also=[leaf]))
        assert (sides[-1][-1][~valid[:, None].expand_as(leaf)] == 0).all()
        assert all(torch.isfinite(tensor).all() for tensor in sides[-1])
    torch.testing.assert_close(*sides, atol=0, rtol=0)


@pytest.mark.parametrize(
    "pool, prefix",
    [
        ("token", {}),
        ("avg", {}),
        ("avg", {"class_token": False}),
        ("map", {"registers": 2}),
        ("map", {"class_token": False}),
    ],
    ids=str,
)
def test_a_sample_that_is_all_padding_is_finite_and_harms_no_other(pool, prefix):
    model = small_vit(pool=pool, **prefix)
    images = torch.randn(2, 3, 24, 32)
    valid = torch.ones(2, 24, 32, dtype=torch.bool)
    valid[1] = False
    logits, *grads = logits_and_gradients(model, images, valid)
    torch.testing.assert_close(logits[:1], model(images[:1]), atol=1e-5, rtol=0)
    assert all(torch.isfinite(tensor).all() for tensor in (logits, *grads))


def test_rubbish_in_padding_stays_out_of_the_statistics_of_a_convolutional_stem():
    model = small_vit(stem="conv").train()
    images = torch.randn(2, 3, 24, 32)
    valid = torch.ones(2, 24, 32, dtype=torch.bool)
    valid[:, :, 16:] = False
    logits = model(images.masked_fill(~valid[:, None], float("nan")), valid)
    assert all(torch.isfinite(tensor).all() for tensor in (logits, *model.buffers()))


def test_a_patch_is_real_when_any_of_its_pixels_is():
    valid = torch.zeros(2, 8, 12, dtype=torch.bool)
    valid[0, 3, 11] = True
    valid[1, 7, 0] = True
    expected = torch.zeros(2, 2, 3, dtype=torch.bool)
    expected[0, 0, 2] = True
    expected[1, 1, 0] = True
    assert torch.equal(valid_patches(valid, (4, 4)), expected)


@pytest.mark.parametrize(
    "valid",
    [torch.ones(2, 24, 32, dtype=dtype) for dtype in (torch.uint8, torch.int64, torch.float32)]
    + [
        torch.ones(shape, dtype=torch.bool)
        for shape in ((2, 3, 4), (2, 12), (24, 32), (1, 24, 32), (2, 32, 24), (2, 1, 24, 32))
    ],
    ids=lambda valid: f"{valid.dtype} {tuple(valid.shape)}",
)
def test_padding_of_numbers_or_another_shape_is_refused_with_what_fits(valid):
    message = r"valid must be torch\.bool of shape \(2, 24, 32\).* got torch\.\w+"
    with pytest.raises(ValueError, match=message):
        small_vit()(torch.randn(2, 3, 24, 32), valid)


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.sampled_from(["token", "avg", "map"]),
    st.sampled_from(sorted(FREE)),
)
def test_any_image_on_any_larger_canvas_equals_itself(size, more, pool, position):
    model = small_vit(position=FREE[position], pool=pool, depth=1)
    images = torch.randn(1, 3, 8 * size[0], 8 * size[1])
    canvas, valid = padded(images, 8 * (size[0] + more[0]), 8 * (size[1] + more[1]))
    torch.testing.assert_close(model(canvas, valid), model(images), atol=1e-5, rtol=0)
