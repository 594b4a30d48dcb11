import copy
from functools import partial
from pathlib import Path

import pytest
import timm
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch import nn
from torch.optim.swa_utils import AveragedModel

from vitrail.attention.positions.learned import Learned
from vitrail.attention.positions.rope import RopeMixed
from vitrail.model import ViT
from vitrail.training.schedule import WarmupCosine


def vit(**given) -> nn.Module:
    sizes = {"image_size": 8, "patch_size": 4, "dim": 16, "depth": 2, "heads": 2, "num_classes": 5}
    return ViT(**sizes, registers=2, qk_norm=True, layer_scale=0.1, **given)


def timm_vit() -> nn.Module:
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=8, patch_size=4, embed_dim=16, depth=2, num_heads=2,
        num_classes=5, reg_tokens=2,
    )  # fmt: skip


def swin() -> nn.Module:
    return timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=32, patch_size=4, window_size=4, embed_dim=16,
        depths=(1, 1), num_heads=(2, 2), num_classes=5,
    )  # fmt: skip


def by_name(optimizer, model) -> dict[str, dict]:
    """The group of each parameter of the model, which the optimizer holds once."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    pairs = [(names[id(p)], group) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(name for name, _ in pairs) == sorted(names.values())
    return dict(pairs)


def decayed(optimizer, model) -> set[str]:
    return {name for name, group in by_name(optimizer, model).items() if group["weight_decay"]}


@pytest.mark.parametrize("make", [vit, timm_vit, swin])
@pytest.mark.parametrize("layer_decay", [None, 0.5])
def test_weight_decay_is_for_matrices_and_kernels_alone(make, layer_decay, optim):
    model = make()
    optimizer, _ = optim(layer_decay=layer_decay).build(model, 10)
    tables = ("pos_embed", "cls_token", "reg_token", "relative_position_bias_table")
    assert decayed(optimizer, model) == {
        name
        for name, parameter in model.named_parameters()
        if parameter.ndim > 1 and not name.endswith(tables)
    }


@pytest.mark.parametrize("position", [RopeMixed(), Learned()])
def test_learned_positions_and_pooling_latents_are_not_decayed(position, optim):
    model = vit(position=position, pool="map")
    found = decayed(optim().build(model, 10)[0], model)
    assert not [name for name in found if "position" in name or "latent" in name or "pos_" in name]


class InDDP(nn.Module):
    """As a model lies in DDP, without its processes."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module


def in_place(model: nn.Module) -> nn.Module:
    model.compile()
    return model


@pytest.mark.parametrize(
    "wrap", [torch.compile, in_place, InDDP, AveragedModel], ids=lambda wrap: wrap.__name__
)
@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("layer_decay", [None, 0.5])
def test_wrapping_a_model_changes_no_group(wrap, name, layer_decay, optim):
    model, optim = vit(), optim(name=name, layer_decay=layer_decay)
    plain, wrapped = (optim.groups(one) for one in (model, wrap(copy.deepcopy(model))))
    for group in (*plain, *wrapped):
        group["params"] = [parameter.shape for parameter in group["params"]]
    assert wrapped == plain


def test_layer_decay_scales_the_rate_itself_and_the_schedule_keeps_the_ratio(optim):
    model = vit()
    optim = optim(lr=0.8, layer_decay=0.5, schedule=WarmupCosine(warmup=0.0, final=0.0))
    optimizer, scheduler = optim.build(model, 2)
    expected = {
        "patch_embed.proj.weight": 0.1, "cls_token": 0.1, "pos_embed": 0.1,
        "blocks.0.attn.qkv.weight": 0.2, "blocks.1.mlp.fc1.bias": 0.4, "norm.weight": 0.4,
        "head.weight": 0.8, "head.bias": 0.8,
    }  # fmt: skip
    groups = by_name(optimizer, model)
    rates = {name: group["lr"] for name, group in groups.items()}
    assert {name: rates[name] for name in expected} == pytest.approx(expected)
    optimizer.step()
    scheduler.step()
    for name, group in groups.items():
        assert group["lr"] == pytest.approx(rates[name] / 2)


def test_layer_decay_of_a_model_without_layers_is_refused(optim):
    with pytest.raises(ValueError, match="needs a model that orders its layers"):
        optim(layer_decay=0.5).build(nn.Linear(2, 2), 10)


@pytest.mark.parametrize(
    "make, hidden",
    [
        (vit, []),
        (timm_vit, []),
        (partial(vit, stem="conv"), ["convs.3", "proj"]),
        (partial(vit, stem="pool"), ["stages.0.0", "stages.0.4", "stages.1.0", "stages.1.4"]),
    ],
    ids=["vit", "timm", "conv stem", "pool stem"],
)
def test_muon_turns_the_matrices_of_the_blocks_and_convolutions_that_read_no_pixels(
    make, hidden, optim
):
    model = make()
    optimizer, _ = optim(name="muon").build(model, 10)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    turned = {n for n, p in model.named_parameters() if optimizer.state[p]["use_muon"]}
    layers = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    assert turned == {f"patch_embed.{name}.weight" for name in hidden} | {
        f"blocks.{block}.{layer}.weight" for block in (0, 1) for layer in layers
    }


def test_frozen_parameters_are_left_out(optim):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    assert by_name(optim().build(model, 10)[0], model[1]).keys() == {"weight", "bias"}


def test_the_fused_step_is_taken_where_torch_has_one_and_nothing_forbids_it(optim):
    def fused(optim, **given):
        return optim.build(nn.Linear(2, 2), 10, **given)[0].param_groups[0].get("fused")

    assert fused(optim())
    assert not fused(optim(), fused=False)
    assert not fused(optim(options={"foreach": True}))
    assert not fused(optim(options={"fused": False}))
    assert not fused(optim(name="lion"))


@pytest.mark.parametrize("name", ["sgd", "momentum", "adamw", "nadamw", "lamb", "lion", "nmuon"])
def test_any_optimizer_of_timm_takes_a_step(name, optim):
    model = nn.Linear(8, 8)
    optimizer, _ = optim(name=name, lr=0.01).build(model, 10)
    model(torch.randn(4, 8)).square().mean().backward()
    before = model.weight.clone()
    optimizer.step()
    assert not torch.equal(model.weight, before)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"name": "adamv"}, r"optim\.name=adamv does not exist in timm; use adam"),
        ({"name": "zzz"}, "use adamw or muon"),
        ({"name": "adahessian"}, "needs second derivatives"),
        ({"name": "fusedlamb"}, "needs a CUDA device and the package apex"),
        (
            {"options": {"beta": 1}},
            r"optim\.options\.beta is not an argument of adamw; use betas, or",
        ),
        ({"options": {"lr": 1}}, r"optim\.options\.lr is not an argument of adamw"),
        ({"layer_decay": 1.5}, r"optim\.layer_decay must be in \(0, 1\] or null, got 1.5"),
    ],
)
def test_what_does_not_exist_is_refused_in_one_line_with_what_does(given, message, optim):
    with pytest.raises(ValueError, match=message) as refusal:
        optim(**given)
    assert "\n" not in str(refusal.value)


CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("choice", [path.stem for path in CONFIGS.glob("optim/*.yaml")])
def test_an_optimizer_built_from_a_config_is_saved_as_plain_containers(choice, tmp_path):
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = compose(f"optim/{choice}", ["+optim.options.betas=[0.8,0.9]"]).optim
    optimizer, _ = instantiate(config).build(nn.Linear(4, 4), 10)
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    groups = torch.load(tmp_path / "state.pt", weights_only=True)["param_groups"]
    assert [tuple(group["betas"]) for group in groups] == [(0.8, 0.9)] * 2
