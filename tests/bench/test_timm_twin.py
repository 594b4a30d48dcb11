"""timm's twin of a model computes what the model computes, or says what timm lacks."""

import pickle

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from timm.models import VisionTransformer

from vitrail.bench.step_baselines import timm_twin
from vitrail.model.stems import STEMS
from vitrail.run.plan import build_network
from vitrail.startup import configs

TINY = ("data.image_size=[8,12]", "model.dim=24", "model.depth=2", "model.heads=3")


def built(*overrides):
    """A network of the config and the plain config of its model."""
    with initialize_config_dir(str(configs()), version_base="1.3"):
        config = compose("train", [*TINY, "backend=reference", *overrides])
    torch.manual_seed(0)
    network = build_network(config, 5, pretrained=False)
    return network, OmegaConf.to_container(config.model, resolve=True)


@pytest.mark.parametrize(
    "overrides",
    [
        *([f"model.stem={stem}"] for stem in STEMS),
        ["model.stem=patch", "model.class_token=true", "model.pool=token"],
        ["model.stem=patch", "model.patch_size=[4,2]", "model.class_token=true", "model.pool=map"],
        ["position=sincos"],
        ["position=none", "model.registers=2"],
        ["model.class_token=true", "position.prefix=false", "model.registers=2"],
        ["model.qk_norm=true", "model.layer_scale=0.1", "model.qkv_bias=false"],
        ["model.mlp=swiglu", "model.mlp_ratio=2"],
        ["model.grad_checkpointing=true"],
    ],
    ids=" ".join,
)
def test_logits_and_gradients_are_equal(overrides):
    ours, config = built(*overrides)
    theirs = timm_twin(ours, config)
    images = torch.randn(2, 3, 8, 12)
    torch.testing.assert_close(theirs(images), ours(images), atol=1e-5, rtol=0)
    for network in (ours, theirs):
        network(images).square().sum().backward()
    own = dict(ours.named_parameters())
    for name, parameter in theirs.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, own.pop(name).grad, atol=1e-4, rtol=1e-4)
    assert not own, "every weight of ours is one of theirs"


@pytest.mark.parametrize("stem", STEMS)
def test_a_twin_can_be_sent_to_another_process(stem):
    network, config = built(f"model.stem={stem}")
    assert isinstance(pickle.loads(pickle.dumps(timm_twin(network, config))), VisionTransformer)


def test_the_same_is_dropped_as_often():
    ours, config = built(
        "model.drop_path=0.4", "model.dropout=0.1", "model.attention_dropout=0.2", "model.depth=3"
    )
    theirs = timm_twin(ours, config)
    assert [block.drop_path1.drop_prob for block in theirs.blocks[1:]] == pytest.approx(
        [block.drop_path1.drop_prob for block in ours.blocks[1:]]
    )
    assert theirs.pos_drop.p == ours.pos_drop.p == 0.1
    assert {block.mlp.drop1.p for block in (*ours.blocks, *theirs.blocks)} == {0.1}
    assert {block.attn.proj_drop.p for block in theirs.blocks} == {0.1}
    assert theirs.blocks[0].attn.attn_drop.p == ours.blocks[0].attn.dropout == 0.2


@pytest.mark.parametrize(
    "overrides, lacks",
    [
        (["pattern=window", "pattern.size=2"], "pattern such as window"),
        (["position=rope"], "position such as rope"),
        (["position=relative"], "position such as relative"),
        (["model.scale=learned"], "scale of its own, such as model.scale=learned"),
        (["model.scale=0.5", "position=rope"], "position such as rope and no scale of its own"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_timm_lacks_is_said(overrides, lacks):
    network, config = built(*overrides)
    with pytest.raises(ValueError, match=f"^timm's VisionTransformer has no {lacks}"):
        timm_twin(network, config)
