"""From an image to a map of tokens by convolutions of stride 2, whose patches overlap."""

from itertools import pairwise

from torch import Tensor, nn

from vitrail.errors import UserError


class ConvStem(nn.Module):
    """Images (B, 3, H, W) -> tokens (B, C, rows, cols) by overlapping 3x3 convolutions of stride 2.

    "Early convolutions help transformers see better" (Xiao et al. 2021): each halving doubles the
    width up to `dim`, with BatchNorm and ReLU, and a 1x1 convolution ends it. The patch size must
    be a power of 2.
    """

    def __init__(self, patch_size: tuple[int, int], dim: int):
        super().__init__()
        self.patch_size = patch_size
        count = halvings("conv", patch_size)
        widths = [3, *(dim // 2 ** (count - 1 - i) for i in range(count))]
        layers = []
        for before, after in pairwise(widths):
            layers += [
                nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
            ]
        self.convs = nn.Sequential(*layers)
        self.proj = nn.Conv2d(dim, dim, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(self.convs(images))


def halvings(stem: str, patch_size: tuple[int, int]) -> int:
    """How often an image is halved; ValueError for a patch that halving does not give."""
    count = patch_size[0].bit_length() - 1
    if patch_size[0] != patch_size[1] or patch_size[0] != 2**count or count == 0:
        raise UserError(
            f"stem={stem} halves the image, so patch_size={patch_size[0]}x{patch_size[1]} must "
            "be a square power of 2; use 2, 4, 8 or 16, or stem=patch"
        )
    return count
