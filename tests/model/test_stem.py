"""From an image to tokens: a linear map a patch, or overlapping convolutions."""

import pytest
import torch

from vitrail.model.patch import ConvStem, PatchEmbed

from .small import small_vit


@pytest.mark.parametrize("patch", [(8, 8), (4, 8)], ids=str)
def test_a_patch_becomes_a_token_by_one_linear_map(patch):
    torch.manual_seed(0)
    stem = PatchEmbed(patch, 12)
    images = torch.randn(2, 3, 16, 24)
    out = stem(images)
    rows, cols = 16 // patch[0], 24 // patch[1]
    assert out.shape == (2, 12, rows, cols)
    corner = images[:, :, -patch[0] :, -patch[1] :].flatten(1)
    expected = corner @ stem.proj.weight.flatten(1).T + stem.proj.bias
    torch.testing.assert_close(out[:, :, -1, -1], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("patch", [2, 4, 8, 16])
def test_the_convolutional_stem_gives_one_token_a_patch(patch):
    stem = ConvStem((patch, patch), 32)
    assert stem(torch.randn(2, 3, 2 * patch, 3 * patch)).shape == (2, 32, 2, 3)


def test_the_convolutional_stem_doubles_its_width_with_each_halving():
    stem = ConvStem((16, 16), 32)
    widths = [layer.out_channels for layer in stem.convs if isinstance(layer, torch.nn.Conv2d)]
    assert widths == [4, 8, 16, 32]


def test_neighbouring_tokens_of_the_convolutional_stem_overlap():
    torch.manual_seed(0)
    stem = ConvStem((8, 8), 16).eval()
    images = torch.randn(1, 3, 16, 32)
    other = images.clone()
    other[..., 15] += 1.0  # the last column of the second patch
    changed = (stem(images) != stem(other)).any(1)[0]
    assert changed[:, 1].any()
    assert changed[:, 2].any()


@pytest.mark.parametrize("patch", [(1, 1), (6, 6), (8, 4), (12, 12)], ids=str)
def test_the_convolutional_stem_refuses_patches_that_halving_does_not_give(patch):
    with pytest.raises(
        ValueError, match=r"^stem=conv .*patch_size=\d+x\d+ must be a square power of 2"
    ):
        ConvStem(patch, 32)


def test_a_model_with_a_convolutional_stem_trains():
    model = small_vit(stem="conv", image_size=(16, 24)).train()
    model(torch.randn(4, 3, 16, 24)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.abs().max() > 0, name
