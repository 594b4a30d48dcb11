"""Attention maps: the weights that a layer's output is made of, from any backend and pattern."""

import pytest
import torch
from torch import Tensor, nn

from vitrail.attention import Grid, SelfAttention2d, patterns
from vitrail.attention.maps import attention_maps, rollout
from vitrail.attention.patterns.full import Full
from vitrail.attention.patterns.window import Window
from vitrail.attention.positions.decomposed import Decomposed
from vitrail.attention.positions.relative import RelativeBias
from vitrail.attention.positions.rope import Rope, RopeMixed
from vitrail.model import ViT

from .cases import ON_CPU

SIZES = {"image_size": (24, 40), "patch_size": 8, "dim": 24, "depth": 2, "heads": 3}
PATTERNS = [example for name in patterns.names() for example in patterns.load(name).examples()]

each_backend = pytest.mark.parametrize("backend", ON_CPU)


def build(**changes) -> ViT:
    """Weights that all show, whatever they begin as."""
    torch.manual_seed(0)
    model = ViT(**SIZES, num_classes=5, **changes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def images(*size: int) -> Tensor:
    return torch.randn(2, 3, *(size or (24, 40)), generator=torch.Generator().manual_seed(1))


def real_pixels() -> Tensor:
    """The last two columns of patches of one image, and the whole of the other, are padding."""
    valid = torch.ones(2, 24, 40, dtype=torch.bool)
    valid[0, :, 24:] = False
    valid[1] = False
    return valid


def given_and_made(model: nn.Module, *inputs, **options) -> dict[str, tuple[Tensor, Tensor]]:
    """The first argument and the output of each module by its name, in a call of the model."""
    seen = {}

    def listen(name: str):
        return lambda _, args, out: seen.update({name: (args[0], out)})

    hooks = [module.register_forward_hook(listen(name)) for name, module in model.named_modules()]
    with torch.no_grad():
        model(*inputs, **options)
    for hook in hooks:
        hook.remove()
    return seen


def by_head(x: Tensor) -> Tensor:
    """(B, N, C) -> (B, h, N, d)."""
    return x.unflatten(-1, (3, 8)).transpose(1, 2)


def check(model: ViT, *inputs: Tensor | None) -> dict[str, Tensor]:
    """Maps times v are what each layer gives to its `proj`; they are given back."""
    maps, seen = attention_maps(model, *inputs), given_and_made(model, *inputs)
    for name, weights in maps.items():
        _, qkv = seen[f"{name}.{'kv' if name == 'attn_pool' else 'qkv'}"]
        out, _ = seen[f"{name}.proj"]
        assert weights.dtype == torch.float32
        torch.testing.assert_close(
            weights @ by_head(qkv[..., -24:]), by_head(out), atol=1e-5, rtol=1e-5
        )
        total = weights.sum(-1)
        assert torch.allclose(total, (total > 0.5).float(), atol=1e-5), "1, or 0 for a dead row"
    return maps


@each_backend
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("padded", [False, True])
def test_the_weights_times_v_are_the_layers_output(backend, pattern, padded):
    model = build(backend=backend, pattern=pattern, registers=1)
    maps = check(model, images(), real_pixels() if padded else None)
    assert list(maps) == ["blocks.0.attn", "blocks.1.attn"]
    assert all(weights.shape == (2, 3, 17, 17) for weights in maps.values())


@each_backend
@pytest.mark.parametrize("pattern", [Full(), Window((2, 3), shift=(1, 0))], ids=str)
@pytest.mark.parametrize("position", [RelativeBias, Decomposed, Rope, RopeMixed])
def test_positions_and_a_learned_scale_are_in_the_weights(backend, pattern, position):
    options = {"position": position(), "scale": "learned", "qk_norm": True}
    model = build(backend=backend, pattern=pattern, **options)
    check(model, images(), real_pixels())
    check(model, images(16, 24))  # another grid than it was built for


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_weights_are_0_where_a_pattern_shows_nothing(pattern):
    grid = Grid(3, 5, 1)
    model = build(pattern=pattern, position=RelativeBias())
    sees = patterns.GridPattern(pattern, grid).visible(torch.device("cpu"))
    for weights in attention_maps(model, images()).values():
        assert not weights.masked_select(~sees).any()
        assert (weights.masked_select(sees) > 0).all()


def test_padding_takes_no_part_and_a_token_that_sees_nothing_has_a_row_of_zeros():
    maps = attention_maps(build(class_token=False, pool="avg"), images(), real_pixels())
    for weights in maps.values():
        columns = weights.unflatten(-1, (3, 5))
        assert not columns[0, ..., 3:].any()
        assert (columns[0, ..., :3] > 0).all()
        assert not weights[1].any()
    total = rollout(maps.values())
    valid = torch.tensor([True, True, True, False, False]).repeat(3)
    assert not total[0, valid][:, ~valid].any()
    assert torch.equal(total[1], torch.eye(15))


@pytest.mark.parametrize("padded", [False, True])
def test_a_pooling_query_has_a_map_of_the_tokens_on_the_map(padded):
    model = build(pool="map", registers=2)
    inputs = images(), real_pixels() if padded else None
    maps = check(model, *inputs)
    assert list(maps) == ["blocks.0.attn", "blocks.1.attn", "attn_pool"]
    assert maps["attn_pool"].shape == (2, 3, 1, 15)


def test_a_layer_by_itself_tells_its_weights_with_a_mask_and_a_bias():
    torch.manual_seed(0)
    layer = SelfAttention2d(24, 3, pattern=Window(2))
    x, mask, bias = torch.randn(2, 24, 3, 5), torch.rand(2, 1, 15, 15) > 0.4, torch.randn(15, 15)
    seen = given_and_made(layer, x, mask=mask, bias=bias)
    v = by_head(seen["qkv"][1][..., -24:])
    weights = layer.weights(x, mask=mask, bias=bias)
    torch.testing.assert_close(weights @ v, by_head(seen["proj"][0]))


def test_some_layers_may_be_named_and_others_are_refused():
    model = build()
    assert list(attention_maps(model, images(), layers=["blocks.1.attn"])) == ["blocks.1.attn"]
    with pytest.raises(ValueError, match=r"^layer blocks\.7\.attn has no attention; there are b"):
        attention_maps(model, images(), layers=["blocks.7.attn"])
    assert attention_maps(nn.Flatten(), images()) == {}  # whose attention is not ours


def test_autocast_does_not_round_the_weights():
    model = build(backend="eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for weights in attention_maps(model, images()).values():
            assert weights.dtype == torch.float32
            torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 16))
        assert rollout([weights]).dtype == torch.float32


def test_the_model_and_the_random_numbers_are_left_as_they_were():
    model = build(dropout=0.5, attention_dropout=0.5, drop_path=0.5)
    evaluated = attention_maps(model, images())
    model.train()
    model.blocks[0].norm1.eval()  # frozen by someone
    modes = [module.training for module in model.modules()]
    random = torch.get_rng_state()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    maps = attention_maps(model, images())
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in model.modules()] == modes
    torch.testing.assert_close(dict(model.state_dict()), before, atol=0, rtol=0)
    assert not any(module._forward_hooks for module in model.modules())
    assert not any(weights.requires_grad for weights in maps.values())
    # As in evaluation, without dropout.
    torch.testing.assert_close(maps, evaluated, atol=0, rtol=0)


def test_a_failure_leaves_the_model_as_it_was_too():
    model = build().train()
    with pytest.raises(ValueError, match="image size"):
        attention_maps(model, images(24, 30))
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.usefixtures("fresh_graphs")
def test_a_compiled_model_has_the_same_maps_and_stays_compiled():
    model = build()
    expected = attention_maps(model, images())
    model.compile(backend="eager")
    out = model(images())
    torch.testing.assert_close(attention_maps(model, images()), expected, atol=0, rtol=0)
    assert torch.equal(model(images()), out)


def test_rollout_multiplies_the_layers_with_their_residual_stream():
    generator = torch.Generator().manual_seed(0)
    maps = [torch.rand(2, 3, 4, 4, generator=generator).softmax(-1) for _ in range(3)]
    maps[1][:, :, 2] = 0.0  # it sees nothing
    total, expected = rollout(maps), torch.eye(4)
    for weights in maps:
        mixed = weights.mean(1) / 2 + torch.eye(4) / 2
        mixed[:, 2] = mixed[:, 2] / mixed[:, 2].sum(-1, keepdim=True)
        expected = mixed @ expected
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(total.sum(-1), torch.ones(2, 4))
    with pytest.raises(ValueError, match=r"has none; give at least one$"):
        rollout([])
