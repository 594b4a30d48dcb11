"""Any timm model, built for our images and classes, or a sentence about why not."""

import pytest
import timm
import torch

from vitrail.model.timm_model import create


def build(name: str, **changes):
    options = {
        "image_size": 32,
        "num_classes": 3,
        "pretrained": False,
        "drop_path": 0.0,
        "patch_size": None,
    }
    return create(name=name, **(options | changes)).eval()


@pytest.mark.parametrize("image_size", [32, (32, 64)], ids=str)
@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "resnet10t", "dla46_c", "vit_tiny_patch16_224.augreg_in21k"]
)
def test_a_transformer_or_a_convolution_is_built_for_the_images(name, image_size):
    height, width = (32, 32) if image_size == 32 else image_size
    model = build(name, image_size=image_size)
    assert model(torch.randn(2, 3, height, width)).shape == (2, 3)


def test_drop_path_reaches_the_model():
    model = build("vit_tiny_patch16_224", drop_path=0.2)
    assert model.blocks[-1].drop_path1.drop_prob == pytest.approx(0.2)


@pytest.mark.parametrize("name", ["dla46_c"])
def test_drop_path_is_refused_by_a_model_that_has_none(name):
    with pytest.raises(ValueError, match=f"model.name={name} has no paths to drop"):
        build(name, drop_path=0.2)


def test_a_transformer_takes_patches_of_another_size():
    model = build("vit_tiny_patch16_224", patch_size=4)
    assert model.patch_embed.grid_size == (8, 8)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 3)


def test_patches_are_refused_by_a_model_that_has_none():
    with pytest.raises(ValueError, match=r"resnet10t has no patches; use model.patch_size=null"):
        build("resnet10t", patch_size=4)


@pytest.mark.parametrize(
    "name, near",
    [("resnet10", "resnet10t"), ("vit_tiny_patch16", "vit_tiny_patch16_224"), ("[", "")],
)
def test_an_unknown_name_is_refused_with_the_near_ones(name, near):
    with pytest.raises(ValueError, match=r"^model\.name=.* is not a timm model") as error:
        build(name)
    assert near in str(error.value)


def test_an_unknown_tag_is_refused_with_those_that_exist():
    with pytest.raises(
        ValueError, match=r"resnet10t has no weights nope; there are resnet10t\.c3_in1k"
    ):
        build("resnet10t.nope")


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "resnet10t"])
def test_weights_that_cannot_be_downloaded_are_one_line(monkeypatch, name):
    real = timm.create_model

    def create_model(name, pretrained, **options):
        model = real(name, pretrained=False, **options)
        if pretrained:
            raise OSError("We couldn't connect to the server\nfor many reasons")
        return model

    monkeypatch.setattr(timm, "create_model", create_model)
    with pytest.raises(ValueError, match=f"model.name={name}: its weights could not be") as error:
        build(name, pretrained=True)
    assert "\n" not in str(error.value)
