"""The layers equal plain implementations with four separate projections."""

import pytest
import torch
from torch import Tensor, nn

from vitrail.attention import Grid, MultiHeadAttention2d, SelfAttention2d

from .cases import ON_CPU

BATCH, DIM, HEADS, ROWS, COLS = 2, 24, 4, 3, 5

each_backend = pytest.mark.parametrize("backend", ON_CPU)


class PlainAttention(nn.Module):
    """Separate q, k, v and output projections on (B, S, D); mask True = may be seen."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads, self.d_head = heads, dim // heads
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.o_proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, dim = x.shape

        def split(t: Tensor) -> Tensor:
            return t.view(batch, length, self.heads, self.d_head).transpose(1, 2)

        q, k, v = split(self.q_proj(x)), split(self.k_proj(x)), split(self.v_proj(x))
        scores = q @ k.transpose(-2, -1) * self.d_head**-0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        out = torch.softmax(scores, dim=-1) @ v
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, dim))


class PlainAttentionOnMap(PlainAttention):
    """The same on a feature map (B, C, H, W), flattened row by row; mask (B, H, W) True = real."""

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        batch, channels, height, width = x.shape
        tokens = x.reshape(batch, channels, height * width).permute(0, 2, 1)
        mask = None if valid is None else valid.reshape(batch, 1, 1, height * width)
        out = super().forward(tokens, mask)
        return out.permute(0, 2, 1).reshape(batch, channels, height, width)


def copy_weights(plain: PlainAttention, ours: MultiHeadAttention2d) -> None:
    with torch.no_grad():
        parts = (plain.q_proj, plain.k_proj, plain.v_proj)
        ours.qkv.weight.copy_(torch.cat([part.weight for part in parts]))
        ours.qkv.bias.copy_(torch.cat([part.bias for part in parts]))
        ours.proj.load_state_dict(plain.o_proj.state_dict())


def projection_gradients(plain: PlainAttention) -> tuple[Tensor, Tensor]:
    """The gradients of the weights of q, k and v below each other, and of the output projection."""
    parts = (plain.q_proj, plain.k_proj, plain.v_proj)
    return torch.cat([part.weight.grad for part in parts]), plain.o_proj.weight.grad


@each_backend
@pytest.mark.parametrize("mask_axes", [None, (), (BATCH, 1), (BATCH, HEADS)], ids=str)
def test_tokens_with_a_mask_equal_the_plain_formula(backend, mask_axes):
    torch.manual_seed(0)
    plain = PlainAttention(DIM, HEADS)
    ours = MultiHeadAttention2d(DIM, HEADS, backend=backend)
    copy_weights(plain, ours)
    length = ROWS * COLS
    x = torch.randn(BATCH, length, DIM)
    mask = None
    if mask_axes is not None:
        mask = torch.rand(*mask_axes, length, length) > 0.4
        mask = mask | torch.eye(length, dtype=torch.bool)
    out, expected = ours(x, Grid(ROWS, COLS), mask=mask), plain(x, mask)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=0)
    out.square().sum().backward()
    expected.square().sum().backward()
    for actual, want in zip(
        (ours.qkv.weight.grad, ours.proj.weight.grad), projection_gradients(plain), strict=True
    ):
        torch.testing.assert_close(actual, want, atol=1e-5, rtol=1e-5)


@each_backend
@pytest.mark.parametrize("padded", [False, True])
def test_a_feature_map_equals_the_plain_formula_flattened_row_by_row(backend, padded):
    torch.manual_seed(0)
    plain = PlainAttentionOnMap(DIM, HEADS)
    ours = SelfAttention2d(DIM, HEADS, backend=backend)
    copy_weights(plain, ours)
    x = torch.randn(BATCH, DIM, ROWS, COLS)
    valid = torch.ones(BATCH, ROWS, COLS, dtype=torch.bool)
    if padded:
        valid[0, :, -1] = False
        valid[1, -1] = False
    x = x * valid[:, None]
    out, expected = ours(x, valid=valid if padded else None), plain(x, valid if padded else None)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=0)
