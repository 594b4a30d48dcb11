"""Baselines: any timm model, built for our images and classes, and a ViT of torch's layers."""

import pytest
import timm
import torch

from vitrail.model.timm_model import create
from vitrail.model.torch_vit import TorchViT

from .small import SIZES
from .test_timm_weights import timm_vit


def build(name: str, **changes):
    options = {"image_size": 32, "num_classes": 3, "drop_path": 0.0, "patch_size": None}
    return create(name=name, **({"pretrained": False} | options | changes)).eval()


@pytest.mark.parametrize("image_size", [32, (32, 64)], ids=str)
@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "resnet10t", "dla46_c", "vit_tiny_patch16_224.augreg_in21k"]
)
def test_a_transformer_or_a_convolution_is_built_for_the_images(name, image_size):
    height, width = (32, 32) if image_size == 32 else image_size
    model = build(name, image_size=image_size)
    assert model(torch.randn(2, 3, height, width)).shape == (2, 3)


def test_drop_path_and_patches_of_another_size_reach_the_model():
    model = build("vit_tiny_patch16_224", drop_path=0.2, patch_size=4)
    assert model.blocks[-1].drop_path1.drop_prob == pytest.approx(0.2)
    assert model.patch_embed.grid_size == (8, 8)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 3)


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("dla46_c", {"drop_path": 0.2}, "model.name=dla46_c has no paths to drop"),
        ("resnet10t", {"patch_size": 4}, r"t has no patches; use model\.patch_size=null"),
        ("resnet10t.nope", {}, r"resnet10t has no weights nope; there are resnet10t\.c3_in1k"),
        ("resnet10", {}, r"^model\.name=resnet10 is not a timm model.* resnet10t"),
        ("vit_tiny_patch16", {}, "is not a timm model.* vit_tiny_patch16_224"),
        ("[", {}, r"^model\.name=\[ is not a timm model"),
    ],
)
def test_an_unknown_name_and_what_a_model_does_not_have_are_refused(name, change, message):
    with pytest.raises(ValueError, match=message):
        build(name, **change)


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


def torch_vit(**changes) -> TorchViT:
    sizes = SIZES | {"patch_size": (8, 4)} | changes
    return TorchViT(**sizes, mlp_ratio=2.0, dropout=0.0).eval()


def test_a_vit_of_torchs_layers_computes_what_timms_does_with_the_same_weights():
    torch.manual_seed(0)
    ours = torch_vit()
    timms = timm_vit(patch_size=(8, 4), mlp_ratio=2.0)
    timms.norm.eps = 1e-5  # torch's
    for block in timms.blocks:
        block.norm1.eps = block.norm2.eps = 1e-5
    names = {
        "encoder.layers": "blocks", "self_attn.in_proj_": "attn.qkv.",
        "self_attn.out_proj": "attn.proj", "linear1": "mlp.fc1", "linear2": "mlp.fc2",
        "encoder.norm": "norm",
    }  # fmt: skip
    state = {}
    for name, value in ours.state_dict().items():
        for torchs, theirs in names.items():
            name = name.replace(torchs, theirs)
        state[name] = value
    timms.load_state_dict(state)
    assert ours.no_weight_decay() <= dict(ours.named_parameters()).keys()
    images = torch.randn(3, 3, 24, 32)
    torch.testing.assert_close(ours(images), timms(images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"heads": 5}, "dim=24 does not split over heads=5; use .*4.* heads"),
        ({"patch_size": 7}, "7x7"),
    ],
)
def test_a_vit_of_torchs_layers_refuses_sizes_that_do_not_fit(change, message):
    with pytest.raises(ValueError, match=message):
        torch_vit(**change)
