"""A ViT of torch's own layers, as a baseline that keeps torch's attention."""

import torch
from torch import Tensor, nn

from vitrail.attention.attention import head_width
from vitrail.model.stems import PatchEmbed, pair, patch_grid


class TorchViT(nn.Module):
    """`nn.TransformerEncoder` on patches, a class token and learned positions.

    The layout of Dosovitskiy et al. 2020: norm before each part, GELU, a norm at the end, and the
    class token read by a linear head. Weights begin as torch's layers begin.

    Args:
        image_size, patch_size: pixels, one number or (height, width).
        dim, depth, heads: width, number of blocks, and heads in each.
        mlp_ratio: hidden width of the MLPs, as a multiple of `dim`.
        dropout: of torch's layers, everywhere that they have one.

    Raises:
        UserError: image sizes that patches do not divide; heads that do not split dim.
    """

    def __init__(
        self,
        *,
        image_size: int | tuple[int, int],
        patch_size: int | tuple[int, int],
        dim: int,
        depth: int,
        heads: int,
        num_classes: int,
        mlp_ratio: float,
        dropout: float,
    ) -> None:
        super().__init__()
        head_width(dim, heads)  # or it says which numbers of heads split dim
        grid = patch_grid(pair(image_size), pair(patch_size))
        self.patch_embed = PatchEmbed(pair(patch_size), dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, 1 + grid.area, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(
            dim, heads, int(dim * mlp_ratio), dropout, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(
            layer, depth, norm=nn.LayerNorm(dim), enable_nested_tensor=False
        )
        self.head = nn.Linear(dim, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, num_classes)."""
        x = self.patch_embed(images).flatten(2).transpose(1, 2)  # (B, area, C)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1).to(x.dtype), x], dim=1)
        return self.head(self.encoder(x + self.pos_embed)[:, 0])

    def no_weight_decay(self) -> set[str]:
        """Names that weight decay must leave alone: the position table and the class token."""
        return {"pos_embed", "cls_token"}
