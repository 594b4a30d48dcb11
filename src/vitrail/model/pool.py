"""From tokens to one vector an image, over real tokens alone."""

import torch
from einops import rearrange
from timm.layers import Mlp
from torch import Tensor, nn

from vitrail.attention import Grid, Mask, attend, backends
from vitrail.attention.backends.reference import attention_weights
from vitrail.model.layers import Gelu


class TokenPool(nn.Module):
    """The class token."""

    def forward(self, x: Tensor, grid: Grid, mask: Mask) -> Tensor:
        return x[:, 0]


class AveragePool(nn.Module):
    """The mean of the real tokens on the map; an image without any gives 0."""

    def forward(self, x: Tensor, grid: Grid, mask: Mask) -> Tensor:
        tokens = x[:, grid.prefix :]
        if mask.valid is None:
            return tokens.mean(1)
        valid = mask.valid[:, grid.prefix :, None]  # (B, area, 1)
        return tokens.masked_fill(~valid, 0.0).sum(1) / valid.sum(1).clamp(min=1)


class AttentionPool(nn.Module):
    """One learned query looks at the real tokens on the map (timm's `AttentionPoolLatent`)."""

    def __init__(self, dim: int, heads: int, *, mlp_ratio: float, backend: str):
        super().__init__()
        self.heads, self.backend = heads, backends.load(backend)
        self.latent = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, dim), std=dim**-0.5))
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), act_layer=Gelu)

    def forward(self, x: Tensor, grid: Grid, mask: Mask) -> Tensor:
        q, k, v, mask = self._project(x, grid, mask)
        x = rearrange(attend(q, k, v, mask=mask, backend=self.backend), "b h n d -> b n (h d)")
        x = self.proj(x)
        return (x + self.mlp(self.norm(x)))[:, 0]

    def weights(self, x: Tensor, grid: Grid, mask: Mask) -> Tensor:
        """(B, h, 1, area): how much is taken of each token on the map, by the reference formula."""
        q, k, _, mask = self._project(x, grid, mask)
        with backends.without_autocast(x.device.type):
            return attention_weights(q, k, mask=mask, bias=None, scale=q.shape[-1] ** -0.5)

    def _project(self, x, grid, mask) -> tuple[Tensor, Tensor, Tensor, Mask]:
        x = x[:, grid.prefix :]
        mask = Mask(valid=None if mask.valid is None else mask.valid[:, grid.prefix :])
        q = self.q(self.latent.expand(x.shape[0], -1, -1))
        q = rearrange(q, "b n (h d) -> b h n d", h=self.heads)
        k, v = rearrange(self.kv(x), "b n (s h d) -> s b h n d", s=2, h=self.heads)
        return q, k, v, mask
