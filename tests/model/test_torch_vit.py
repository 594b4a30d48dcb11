"""The baseline of torch's own layers is the published ViT."""

import pytest
import torch
from timm.models import VisionTransformer

from vitrail.model.torch_vit import TorchViT

SIZES = {"image_size": (16, 24), "patch_size": (8, 4), "dim": 32, "depth": 2, "heads": 4}


def test_it_computes_what_timms_vit_computes_with_the_same_weights():
    torch.manual_seed(0)
    ours = TorchViT(**SIZES, num_classes=5, mlp_ratio=2.0, dropout=0.0).eval()
    timms = VisionTransformer(
        img_size=(16, 24), patch_size=(8, 4), embed_dim=32, depth=2, num_heads=4, num_classes=5,
        mlp_ratio=2.0,
    ).eval()  # fmt: skip
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
        for torchs, timm in names.items():
            name = name.replace(torchs, timm)
        state[name] = value
    timms.load_state_dict(state)
    images = torch.randn(3, 3, 16, 24)
    torch.testing.assert_close(ours(images), timms(images), atol=1e-5, rtol=1e-5)


def test_positions_and_the_class_token_are_not_decayed():
    model = TorchViT(**SIZES, num_classes=5, mlp_ratio=2.0, dropout=0.0)
    assert model.no_weight_decay() <= dict(model.named_parameters()).keys()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"heads": 5}, "dim=32 does not split over heads=5; use .*4.* heads"),
        ({"patch_size": 7}, "7x7"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        TorchViT(**SIZES | change, num_classes=5, mlp_ratio=2.0, dropout=0.0)
