"""With copied weights the layer equals timm's Attention and torch's MultiheadAttention."""

from functools import partial

import pytest
import torch
from timm.layers import Attention as TimmAttention
from torch import nn

from vitrail.attention import Grid, MultiHeadAttention2d, SelfAttention2d

from .cases import ON_CPU

DIM, HEADS, GRID = 24, 4, Grid(3, 5)

each_backend = pytest.mark.parametrize("backend", ON_CPU)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=0)


@each_backend
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("qkv_bias", [False, True])
def test_timms_attention_has_the_same_state_dict_and_the_same_outputs(backend, qk_norm, qkv_bias):
    torch.manual_seed(0)
    options = {"qkv_bias": qkv_bias, "qk_norm": qk_norm}
    theirs = TimmAttention(DIM, HEADS, **options, norm_layer=partial(nn.LayerNorm, eps=1e-6))
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.1)
    ours = MultiHeadAttention2d(DIM, HEADS, backend=backend, **options)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    x = torch.randn(2, GRID.tokens, DIM)
    mask = torch.rand(2, HEADS, GRID.tokens, GRID.tokens) > 0.4
    close(ours(x, GRID), theirs(x))
    out, expected = ours(x, GRID, mask=mask), theirs(x, attn_mask=mask)
    close(out, expected)
    gradients = [
        torch.autograd.grad(y.square().sum(), (layer.qkv.weight, layer.proj.weight))
        for y, layer in ((out, ours), (expected, theirs))
    ]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)


@each_backend
def test_a_feature_map_is_its_tokens_row_by_row(backend):
    torch.manual_seed(0)
    layer = SelfAttention2d(DIM, HEADS, backend=backend)
    tokens = MultiHeadAttention2d(DIM, HEADS, backend=backend)
    tokens.load_state_dict(layer.state_dict())
    x = torch.randn(2, DIM, GRID.rows, GRID.cols)
    expected = tokens(x.flatten(2).transpose(1, 2), GRID)
    assert torch.equal(layer(x).flatten(2).transpose(1, 2), expected)


@each_backend
def test_torchs_multihead_attention_is_equal_once_its_masks_are_inverted(backend):
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
    ours = MultiHeadAttention2d(DIM, HEADS, backend=backend)
    with torch.no_grad():
        nn.init.normal_(theirs.in_proj_bias)
        ours.qkv.weight.copy_(theirs.in_proj_weight)
        ours.qkv.bias.copy_(theirs.in_proj_bias)
        ours.proj.load_state_dict(theirs.out_proj.state_dict())
    valid = torch.rand(2, GRID.rows, GRID.cols) > 0.4
    mask = torch.rand(GRID.tokens, GRID.tokens) > 0.4
    valid[:, 0, 0] = True
    mask[:, 0] = True
    x = torch.randn(2, GRID.tokens, DIM) * valid.flatten(1)[..., None]
    given = {"key_padding_mask": ~valid.flatten(1), "attn_mask": ~mask, "need_weights": False}
    expected, _ = theirs(x, x, x, **given)
    close(ours(x, GRID, valid=valid, mask=mask), expected)
