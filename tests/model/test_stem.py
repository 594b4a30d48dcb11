"""From an image to tokens: a linear map a patch, or overlapping convolutions."""

import pytest
import torch
import torch.nn.functional as F

from vitrail.model import stems
from vitrail.model.stems import SPREADS_STD, STEMS, ConvStem, PatchEmbed, PoolStem

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


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize("patch", [2, 4, 8, 16])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_stem_gives_one_token_a_patch(stem, patch, device):
    with torch.device(device):
        stem = STEMS[stem]((patch, patch), 32)
        assert stem(torch.randn(2, 3, 2 * patch, 3 * patch)).shape == (2, 32, 2, 3)


def test_the_convolutional_stem_doubles_its_width_with_each_halving():
    stem = ConvStem((16, 16), 32)
    widths = [layer.out_channels for layer in stem.convs if isinstance(layer, torch.nn.Conv2d)]
    assert widths == [4, 8, 16, 32]


@pytest.mark.parametrize("stem", [ConvStem, PoolStem])
def test_neighbouring_tokens_of_stems_of_convolutions_overlap(stem):
    torch.manual_seed(0)
    stem = stem((8, 8), 16).eval()
    images = torch.randn(1, 3, 16, 32)
    other = images.clone()
    other[..., 15] += 1.0  # the last column of the second patch
    changed = (stem(images) != stem(other)).any(1)[0]
    assert changed[:, 1].any()
    assert changed[:, 2].any()


@pytest.mark.parametrize("stem", sorted(STEMS.keys() - {"patch"}))
@pytest.mark.parametrize("patch", [(1, 1), (6, 6), (8, 4), (12, 12)], ids=str)
def test_stems_of_convolutions_refuse_patches_that_halving_does_not_give(stem, patch):
    message = rf"^stem={stem} .*patch_size=\d+x\d+ must be a square power of 2"
    with pytest.raises(ValueError, match=message):
        STEMS[stem](patch, 32)


def test_the_patches_of_the_pooling_stem_are_an_orthonormal_basis():
    flat = stems.haar_patches().flatten(1)
    torch.testing.assert_close(flat @ flat.T, torch.eye(12), atol=1e-6, rtol=0)


def test_the_filters_of_the_pooling_stem_decorrelate_smooth_images():
    torch.manual_seed(0)
    colours = torch.randn(8, 1, 64, 64) + 0.3 * torch.randn(8, 3, 64, 64)  # brightness above all
    images = F.avg_pool2d(colours, 5, stride=1)
    patches = F.unfold(images, 2).movedim(1, 0).flatten(1)  # (12, all 2x2 patches)
    before = torch.corrcoef(patches)
    found = F.conv2d(images, stems.whitening_filters(SPREADS_STD)).movedim(1, 0).flatten(1)
    apart = ~torch.eye(12, dtype=torch.bool)
    assert before[apart].abs().mean() > 0.7
    assert torch.corrcoef(found)[apart].abs().mean() < 0.05


def test_the_pooling_stem_finds_the_same_however_images_are_normalised():
    pixels = torch.rand(2, 3, 8, 12) - 0.4
    found = []
    for std in (SPREADS_STD, (0.5, 0.1, 0.25)):
        torch.manual_seed(0)
        stem = PoolStem((2, 2), 24, pixel_std=std)
        found.append(stem(pixels / torch.tensor(std).view(3, 1, 1)))
    torch.testing.assert_close(*found)


def test_the_pooling_stem_begins_as_an_identity_between_its_poolings():
    stem = PoolStem((4, 4), 192)
    first = stem.stages[0][0].weight
    assert first.shape == (48, 24, 3, 3)
    torch.testing.assert_close(first[:24, :, 1, 1], torch.eye(24))
    assert first[:24].count_nonzero() == 24
    assert first[24:].count_nonzero() > 24
    second = stem.stages[0][4].weight
    torch.testing.assert_close(second[:, :, 1, 1], torch.eye(48))
    assert second.count_nonzero() == 48


def test_the_first_of_several_poolings_is_narrow_and_its_filters_are_no_weights():
    for patch, widths in ((2, [96]), (4, [24, 96]), (8, [24, 96, 96])):
        stem = PoolStem((patch, patch), 96)
        assert [stage[0].out_channels for stage in stem.stages] == widths
        assert not [name for name in stem.state_dict() if "filters" in name]


@pytest.mark.parametrize("stem", sorted(STEMS.keys() - {"patch"}))
def test_a_model_with_a_stem_of_convolutions_trains(stem):
    model = small_vit(stem=stem, image_size=(16, 24)).train()
    model(torch.randn(4, 3, 16, 24)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.abs().max() > 0, name
