"""From an image to a map of tokens: the stems that `model.stem` may name, and their grid."""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.attention.grid import Grid
from vitrail.errors import UserError
from vitrail.model.layers import Gelu

# How far what `haar_patches` finds spreads, by colour and pattern: the root of its variance + 5e-4
# (Jordan 2024: what is hardly ever there stays small). Round figures, within a third of what
# CIFAR-10's images give as JPEG files, divided by the deviation of their pixels, `SPREADS_STD`.
SPREADS = [3.15, 0.59, 0.63, 0.24], [0.89, 0.068, 0.080, 0.027], [0.43, 0.047, 0.053, 0.026]
SPREADS_STD = 0.2470, 0.2435, 0.2616


def pair(size: int | tuple[int, int]) -> tuple[int, int]:
    """(height, width) from one number for a square, or from the two themselves."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def patch_grid(image_size: tuple[int, int], patch_size: tuple[int, int], prefix: int = 0) -> Grid:
    """The grid of whole patches on an image, or UserError with the nearest sizes that divide."""
    if min(patch_size) < 1:
        raise UserError(f"patch_size must be >= 1 pixel, got {patch_size[0]}x{patch_size[1]}")
    for side, patch in zip(image_size, patch_size, strict=True):
        if side % patch or side < patch:
            below, above = side // patch * patch, (side // patch + 1) * patch
            raise UserError(
                f"image size {image_size[0]}x{image_size[1]} does not divide into patches of "
                f"{patch_size[0]}x{patch_size[1]}: {side} is not a multiple of {patch}; use "
                f"{f'{below} or ' if below else ''}{above}, or pad the images"
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

    Each halving doubles the width up to `dim`, with BatchNorm and ReLU, and a 1x1 convolution ends
    it (Xiao et al. 2021). The patch size must be a power of 2.
    """

    def __init__(self, patch_size: tuple[int, int], dim: int):
        super().__init__()
        self.patch_size = patch_size
        count = halvings("conv", patch_size)
        widths = [3, *(dim // 2 ** (count - 1 - i) for i in range(count))]
        layers = []
        for before, after in pairwise(widths):
            layers.append(nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False))
            layers += [nn.BatchNorm2d(after), nn.ReLU()]
        self.convs = nn.Sequential(*layers)
        self.proj = nn.Conv2d(dim, dim, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(self.convs(images))


class PoolStem(nn.Module):
    """Images (B, 3, H, W) -> tokens (B, C, rows, cols) by convolutions and max-pooling.

    For small images and short trainings: convolutions and pooling in place of patches (CCT, Hassani
    et al. 2021), in the order of Jordan 2024, "94% on CIFAR-10 in 3.29 seconds". First come the 12
    fixed filters of `whitening_filters`, with both signs and a learned bias. Then each halving is a
    3x3 convolution, max-pooling and a second 3x3 convolution, which begin as identities, with
    BatchNorm and GELU; the first of several is a quarter of `dim` wide. The patch size must be a
    power of 2.
    """

    def __init__(
        self, patch_size: tuple[int, int], dim: int, *, pixel_std: Sequence[float] = SPREADS_STD
    ):
        super().__init__()
        self.patch_size = patch_size
        filters = whitening_filters(pixel_std)
        self.register_buffer("filters", torch.cat([filters, -filters]), persistent=False)
        self.bias = nn.Parameter(torch.zeros(len(self.filters)))
        self.act = Gelu()
        later = halvings("pool", patch_size) - 1
        widths = [len(self.filters), *([dim // 4] if later else []), *[dim] * max(later, 1)]
        self.stages = nn.Sequential(*(_stage(*ends) for ends in pairwise(widths)))

    def forward(self, images: Tensor) -> Tensor:
        # Pixel by pixel in memory, all channels together, is what a CPU convolves fastest.
        images = images.contiguous(memory_format=torch.channels_last)
        found = F.conv2d(F.pad(images, (0, 1, 0, 1)), self.filters, self.bias)
        return self.stages(self.act(found))


STEMS = {"patch": PatchEmbed, "conv": ConvStem, "pool": PoolStem}


def halvings(stem: str, patch_size: tuple[int, int]) -> int:
    """How often an image is halved; UserError for a patch that halving does not give."""
    count = patch_size[0].bit_length() - 1
    if patch_size[0] != patch_size[1] or patch_size[0] != 2**count or count == 0:
        raise UserError(
            f"stem={stem} halves the image, so patch_size={patch_size[0]}x{patch_size[1]} must "
            "be a square power of 2; use 2, 4, 8 or 16, or stem=patch"
        )
    return count


def whitening_filters(pixel_std: Sequence[float]) -> Tensor:
    """(12, 3, 2, 2): 2x2 colour patches that natural images hardly mix, and find equally often.

    Haar's four patterns of 2x2 pixels, each in brightness, red against blue, and green against
    both: very nearly the principal components of small patches (Ruderman et al. 1998). Each is
    divided by the standard deviation of what it finds in natural images. pixel_std: what each
    channel of pixels in [0, 1] was divided by when the images were normalised.
    """
    filters = haar_patches() / torch.tensor(SPREADS).reshape(12, 1, 1, 1)
    return filters * (torch.tensor(pixel_std) / torch.tensor(SPREADS_STD))[:, None, None]


def haar_patches() -> Tensor:
    """(12, 3, 2, 2): an orthonormal basis of 2x2 colour patches, four patterns in three colours."""
    colours = torch.tensor([[1, 1, 1], [1, 0, -1], [1, -2, 1]], dtype=torch.float32)
    colours /= colours.norm(dim=1, keepdim=True)
    sums = torch.tensor([[1, 1], [1, -1]], dtype=torch.float32) / 2**0.5
    patterns = torch.einsum("ai,bj->abij", sums, sums).reshape(4, 2, 2)
    return torch.einsum("kc,pij->kpcij", colours, patterns).reshape(12, 3, 2, 2)


def _stage(before: int, after: int) -> nn.Sequential:
    """(B, before, H, W) -> (B, after, H/2, W/2)."""
    first = nn.Conv2d(before, after, 3, padding=1, bias=False)
    second = nn.Conv2d(after, after, 3, padding=1, bias=False)
    for conv in (first, second):
        nn.init.dirac_(conv.weight[: conv.in_channels])
    return nn.Sequential(
        first, nn.MaxPool2d(2), nn.BatchNorm2d(after), Gelu(),
        second, nn.BatchNorm2d(after), Gelu(),
    )  # fmt: skip
