"""The same architecture with the same weights by timm, whose attention is the one people know."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from timm.layers import SwiGLU
from timm.models import VisionTransformer
from torch import Tensor, nn

from vitrail.attention.patterns.full import Full
from vitrail.attention.positions.learned import Learned
from vitrail.attention.positions.none import NoPosition
from vitrail.attention.positions.sincos import SinCos
from vitrail.errors import UserError
from vitrail.model import ViT
from vitrail.model.stems import ConvStem, PatchEmbed, PoolStem, pair, patch_grid


def twin(network: ViT, config: Mapping[str, Any]) -> VisionTransformer:
    """timm's VisionTransformer that computes what `network` computes, as timm would run it.

    config: the plain config that the network was built from. Raises UserError where timm has no
    such model, with what it lacks.
    """
    if lacks := _lacks(network, config):
        raise UserError(f"timm's VisionTransformer has no {' and no '.join(lacks)}")
    position, stem = network.position, type(network.patch_embed)
    model = VisionTransformer(
        img_size=tuple(pair(config["image_size"])),
        patch_size=tuple(pair(config["patch_size"])),
        num_classes=network.head.out_features,
        global_pool=config["pool"],
        embed_dim=config["dim"],
        depth=config["depth"],
        num_heads=config["heads"],
        mlp_ratio=config["mlp_ratio"],
        qkv_bias=config["qkv_bias"],
        qk_norm=config["qk_norm"],
        init_values=config["layer_scale"],
        class_token=config["class_token"],
        reg_tokens=config["registers"],
        pos_embed="none" if isinstance(position, NoPosition) else "learn",
        no_embed_class=isinstance(position, Learned) and not position.prefix,
        pos_drop_rate=config["dropout"],
        proj_drop_rate=config["dropout"],
        attn_drop_rate=config["attention_dropout"],
        drop_path_rate=config["drop_path"],
        norm_layer=partial(nn.LayerNorm, eps=1e-6),
        **({} if stem is PatchEmbed else {"embed_layer": EMBED_LAYERS[stem]}),
        **({"mlp_layer": SwiGLU, "act_layer": nn.SiLU} if config["mlp"] == "swiglu" else {}),
    )
    weights = network.state_dict()
    if isinstance(position, SinCos):  # a table that is given here and computed there
        tokens = torch.zeros(1, network.grid.tokens, network.dim)
        weights |= {"pos_embed": position.embed(tokens, None, network.grid)}
        model.pos_embed.requires_grad_(False)
    model.load_state_dict(weights, strict=True)
    if stem is PoolStem:  # which no state dict holds
        model.patch_embed.filters = network.patch_embed.filters
    model.set_grad_checkpointing(config["grad_checkpointing"])
    return model


def _lacks(network: ViT, config: Mapping[str, Any]) -> list[str]:
    hiding = {type(block.attn.pattern) for block in network.blocks} - {Full}
    lacks = [f"pattern such as {_file(pattern)}" for pattern in hiding]
    if not isinstance(network.position, Learned | NoPosition | SinCos):
        lacks.append(f"position such as {_file(type(network.position))}")
    if config["scale"] is not None:
        lacks.append(f"scale of its own, such as model.scale={config['scale']}")
    return lacks


def _file(part: type) -> str:
    """The name that a part is chosen by."""
    return part.__module__.rpartition(".")[2]


class _CalledByTimm:
    """One of our stems as an `embed_layer`: timm's VisionTransformer has none like it."""

    def __init__(self, *, img_size, patch_size, embed_dim, **_):
        super().__init__(pair(patch_size), embed_dim)
        grid = patch_grid(pair(img_size), pair(patch_size))
        self.grid_size, self.num_patches = (grid.rows, grid.cols), grid.area

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).flatten(2).transpose(1, 2)


class _Conv(_CalledByTimm, ConvStem):
    pass


class _Pool(_CalledByTimm, PoolStem):
    pass


EMBED_LAYERS = {ConvStem: _Conv, PoolStem: _Pool}
