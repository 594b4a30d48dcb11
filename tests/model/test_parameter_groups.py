"""Names that optimizers ask the model for: what must not decay, and which depth a parameter has."""

import pytest
from timm.optim import param_groups_layer_decay, param_groups_weight_decay

from vitrail.attention.positions.learned import Learned
from vitrail.attention.positions.none import NoPosition
from vitrail.attention.positions.relative import RelativeBias
from vitrail.attention.positions.rope import RopeMixed
from vitrail.model.stems import STEMS

from .small import small_vit

POSITIONS = [Learned(), RopeMixed(), RelativeBias()]
FULL = {"registers": 2, "pool": "map", "qk_norm": True, "layer_scale": 0.1}


def groups_by_name(model, groups) -> dict[str, dict]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(parameter)]: group for group in groups for parameter in group["params"]}


@pytest.mark.parametrize("position", [*POSITIONS, NoPosition()], ids=str)
def test_position_tables_tokens_and_vectors_do_not_decay_and_matrices_do(position):
    model = small_vit(**FULL, position=position)
    parameters, listed = dict(model.named_parameters()), model.no_weight_decay()
    assert listed - ({"pos_embed"} if model.pos_embed is None else set()) <= parameters.keys()
    assert {"cls_token", "reg_token", "attn_pool.latent"} <= listed
    groups = param_groups_weight_decay(model, weight_decay=0.1, no_weight_decay_list=listed)
    groups = groups_by_name(model, groups)
    assert groups.keys() == parameters.keys()
    tables = ("cls_token", "reg_token", "pos_embed", "latent", "frequencies", "_table")
    for name, parameter in parameters.items():
        spared = parameter.ndim == 1 or name.endswith(tables)
        assert (groups[name]["weight_decay"] == 0) == spared, name


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize("position", POSITIONS, ids=str)
def test_layer_decay_gives_the_stem_least_and_the_head_most(stem, position):
    model = small_vit(**FULL, depth=3, stem=stem, position=position)
    options = {"weight_decay": 0.1, "no_weight_decay_list": model.no_weight_decay()}
    groups = param_groups_layer_decay(model, **options, layer_decay=0.5)
    scale = {name: group["lr_scale"] for name, group in groups_by_name(model, groups).items()}
    assert scale.keys() == {name for name, _ in model.named_parameters()}
    depth = {}
    for name, value in scale.items():
        if name.startswith("blocks."):
            part = ".".join(name.split(".")[:2])
        elif name.startswith("norm."):
            part = "blocks.2"  # timm counts the last norm with the last block
        elif name.startswith(("patch_embed", "cls_token", "reg_token", "pos_embed")):
            part = "stem"
        else:
            part = "end"
        assert depth.setdefault(part, value) == value, name
    order = ["stem", "blocks.0", "blocks.1", "blocks.2", "end"]
    assert [depth[part] for part in order] == sorted(depth.values())
    assert len(set(depth.values())) == 5
    assert depth["end"] == 1.0
