"""From an image to a map of tokens: one patch a token, or a stem of overlapping convolutions."""

from itertools import pairwise

from torch import Tensor, nn

from vitrail.attention.grid import Grid


def pair(size: int | tuple[int, int]) -> tuple[int, int]:
    """(height, width) from one number for a square, or from the two themselves."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def patch_grid(image_size: tuple[int, int], patch_size: tuple[int, int], prefix: int = 0) -> Grid:
    """The grid of whole patches on an image, or ValueError with the nearest sizes that divide."""
    if min(patch_size) < 1:
        raise ValueError(
            f"patch_size={patch_size[0]}x{patch_size[1]} is empty; use 1 or more pixels"
        )
    for side, patch in zip(image_size, patch_size, strict=True):
        if side % patch or side < patch:
            below, above = side // patch * patch, (side // patch + 1) * patch
            raise ValueError(
                f"image size {image_size[0]}x{image_size[1]} does not divide into patches of "
                f"{patch_size[0]}x{patch_size[1]}: {side} is no multiple of {patch}; use "
                + (f"{below} or {above}" if below else f"{above}")
                + ", or pad the images"
            )
    return Grid(image_size[0] // patch_size[0], image_size[1] // patch_size[1], prefix)


class PatchEmbed(nn.Module):
    """Images (B, 3, H, W) -> tokens (B, C, rows, cols), one linear map a patch."""

    def __init__(self, patch_size: tuple[int, int], dim: int):
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(3, dim, patch_size, stride=patch_size)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(images)


class ConvStem(nn.Module):
    """Images (B, 3, H, W) -> tokens (B, C, rows, cols) by overlapping 3x3 convolutions of stride 2.

    "Early convolutions help transformers see better" (Xiao et al. 2021): each halving doubles the
    width up to `dim`, with BatchNorm and ReLU, and a 1x1 convolution ends it. The patch size must
    be a power of 2.
    """

    def __init__(self, patch_size: tuple[int, int], dim: int):
        super().__init__()
        self.patch_size = patch_size
        halvings = patch_size[0].bit_length() - 1
        if patch_size[0] != patch_size[1] or patch_size[0] != 2**halvings or halvings == 0:
            raise ValueError(
                f"stem=conv halves the image, so patch_size={patch_size[0]}x{patch_size[1]} must "
                "be a square power of 2; use 2, 4, 8 or 16, or stem=patch"
            )
        widths = [3] + [dim // 2 ** (halvings - 1 - i) for i in range(halvings)]
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


STEMS = {"patch": PatchEmbed, "conv": ConvStem}
