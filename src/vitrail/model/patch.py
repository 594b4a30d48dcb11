"""From an image to a map of tokens: one linear map a patch, and the grid of patches."""

from torch import Tensor, nn

from vitrail.attention.grid import Grid
from vitrail.errors import UserError


def pair(size: int | tuple[int, int]) -> tuple[int, int]:
    """(height, width) from one number for a square, or from the two themselves."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def patch_grid(image_size: tuple[int, int], patch_size: tuple[int, int], prefix: int = 0) -> Grid:
    """The grid of whole patches on an image, or ValueError with the nearest sizes that divide."""
    if min(patch_size) < 1:
        raise UserError(
            f"patch_size={patch_size[0]}x{patch_size[1]} is empty; use 1 or more pixels"
        )
    for side, patch in zip(image_size, patch_size, strict=True):
        if side % patch or side < patch:
            below, above = side // patch * patch, (side // patch + 1) * patch
            raise UserError(
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
