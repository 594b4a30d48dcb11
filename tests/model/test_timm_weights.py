"""timm's weights load strictly into ours and ours into timm's, with equal logits."""

from functools import partial

import pytest
import timm
import torch
from timm.layers import SwiGLU
from timm.models import VisionTransformer
from torch import nn

from vitrail.attention.positions.learned import Learned
from vitrail.attention.positions.none import NoPosition
from vitrail.model import ViT

from .small import ON_CPU, SIZES, shake, small_vit

norm = partial(nn.LayerNorm, eps=1e-6)
TIMMS = {"image_size": "img_size", "dim": "embed_dim", "heads": "num_heads"}

BARE = {"class_token": False}
# Our options, and timm's for the same model.
VARIANTS = {
    "class token": ({}, {}),
    "registers": ({"registers": 4}, {"reg_tokens": 4}),
    "class token and average": ({"pool": "avg"}, {"global_pool": "avg"}),
    "average without a class token": (BARE | {"pool": "avg"}, BARE | {"global_pool": "avg"}),
    "registers alone": (
        BARE | {"pool": "avg", "registers": 3},
        BARE | {"global_pool": "avg", "reg_tokens": 3},
    ),
    "qk-norm": ({"qk_norm": True}, {"qk_norm": True}),
    "layer scale": ({"layer_scale": 1e-5}, {"init_values": 1e-5}),
    "no qkv bias": ({"qkv_bias": False}, {"qkv_bias": False}),
    "learned query": ({"pool": "map"}, {"global_pool": "map"}),
    "learned query without a class token": (BARE | {"pool": "map"}, BARE | {"global_pool": "map"}),
    "no rows for the class token": (
        {"position": Learned(prefix=False), "registers": 2},
        {"no_embed_class": True, "reg_tokens": 2},
    ),
    "no position": ({"position": NoPosition()}, {"pos_embed": "none"}),
    "another MLP width": ({"mlp_ratio": 3.0}, {"mlp_ratio": 3.0}),
    "SwiGLU": ({"mlp": "swiglu"}, {"mlp_layer": SwiGLU, "act_layer": nn.SiLU}),
    "patches that are not square": ({"patch_size": (4, 8)}, {"patch_size": (4, 8)}),
    "everything at once": (
        {"registers": 4, "pool": "avg", "qk_norm": True, "layer_scale": 0.1},
        {"reg_tokens": 4, "global_pool": "avg", "qk_norm": True, "init_values": 0.1},
    ),
}

each_variant = pytest.mark.parametrize("ours, theirs", VARIANTS.values(), ids=VARIANTS.keys())


def timm_vit(**options) -> VisionTransformer:
    sizes = {TIMMS.get(name, name): value for name, value in SIZES.items()}
    return VisionTransformer(**sizes | {"norm_layer": norm} | options).eval()


def close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


@each_variant
def test_weights_load_both_ways_with_equal_logits_and_gradients(ours, theirs):
    torch.manual_seed(0)
    theirs = timm_vit(**theirs)
    shake(theirs)
    ours = ViT(**(SIZES | ours)).eval()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    images = torch.randn(2, 3, *SIZES["image_size"])
    labels = torch.tensor([1, 4])
    logits = ours(images), theirs(images)
    close(*logits)
    for side in logits:
        nn.functional.cross_entropy(side, labels).backward()
    wanted = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        close(parameter.grad, wanted[name].grad)


@pytest.mark.parametrize("backend", ON_CPU)
def test_vit_tiny_patch16_224_loads_both_ways_with_equal_logits(backend):
    torch.manual_seed(0)
    theirs = timm.create_model("vit_tiny_patch16_224").eval()
    sizes = {"image_size": 224, "patch_size": 16, "dim": 192, "depth": 12, "heads": 3}
    ours = ViT(**sizes, num_classes=1000, backend=backend).eval()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        close(ours(images), theirs(images))
    timm.create_model("vit_tiny_patch16_224").load_state_dict(ours.state_dict(), strict=True)


@pytest.mark.parametrize("size", [(24, 32), (32, 24), (40, 16), (8, 8)], ids=str)
@pytest.mark.parametrize("prefix", [True, False])
def test_other_image_sizes_equal_timms_dynamic_ones(size, prefix):
    ours = small_vit(registers=2, position=Learned(prefix=prefix))
    theirs = timm_vit(reg_tokens=2, dynamic_img_size=True, no_embed_class=not prefix)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    images = torch.randn(2, 3, *size)
    close(ours(images), theirs(images))


def test_a_fresh_model_is_initialised_as_timms_is():
    torch.manual_seed(0)
    options = {"dim": 128, "registers": 4, "qk_norm": True, "layer_scale": 1e-5, "mlp": "swiglu"}
    ours = ViT(**SIZES | options | {"heads": 4})
    options = {"embed_dim": 128, "reg_tokens": 4, "qk_norm": True, "init_values": 1e-5}
    theirs = timm_vit(**options, num_heads=4, mlp_layer=SwiGLU)
    wanted = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        other = wanted[name]
        assert parameter.mean().item() == pytest.approx(other.mean().item(), abs=5e-3), name
        if parameter.numel() > 1:
            spread = pytest.approx(other.std().item(), rel=0.25, abs=1e-6)
            assert parameter.std().item() == spread, name


def test_a_swiglu_gate_begins_open():
    gate = ViT(**SIZES, mlp="swiglu").blocks[0].mlp.fc1_g
    assert (gate.bias == 1).all()
    assert gate.weight.abs().max() < 1e-4


def test_the_head_that_is_reset_is_as_fresh_as_a_new_one():
    model = small_vit()
    model.reset_classifier(7)
    assert model(torch.randn(1, 3, 24, 32)).shape == (1, 7)
    assert (model.head.bias == 0).all()
    assert model.head.weight.std() < 0.03
