"""One pre-norm transformer block around vitrail's attention, with timm's attribute names."""

from functools import partial

from timm.layers import DropPath, LayerScale, Mlp, SwiGLU
from torch import Tensor, nn

from vitrail.attention import Grid, Mask, MultiHeadAttention2d
from vitrail.model.layers import Dropout, Gelu

MLPS = {"mlp": partial(Mlp, act_layer=Gelu), "swiglu": SwiGLU}


class Block(nn.Module):
    """x + attention(norm1(x)), then x + mlp(norm2(x)); each branch may be scaled and dropped.

    layer_scale: the initial value of a learned scale a channel (Touvron et al. 2021), None for
    none. drop_path: probability that a sample skips a branch in training (Huang et al. 2016).
    """

    def __init__(
        self,
        dim: int,
        attn: MultiHeadAttention2d,
        *,
        mlp: str,
        mlp_ratio: float,
        layer_scale: float | None,
        dropout: float,
        drop_path: float,
    ):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = attn
        self.drop = Dropout(dropout)
        self.ls1 = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.drop_path1 = DropPath(drop_path)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = MLPS[mlp](dim, int(dim * mlp_ratio), drop=dropout)
        self.mlp.drop1, self.mlp.drop2 = Dropout(dropout), Dropout(dropout)
        self.ls2 = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.drop_path2 = DropPath(drop_path)

    def forward(self, x: Tensor, grid: Grid, mask: Mask) -> Tensor:
        """Tokens (B, N, C) -> (B, N, C)."""
        attended = self.drop(self.attn(self.norm1(x), grid, mask=mask))
        x = x + self.drop_path1(self.ls1(attended))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))
