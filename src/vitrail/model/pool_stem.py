"""From an image to a map of tokens by convolutions and max-pooling, for short trainings."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.model.conv_stem import halvings
from vitrail.model.gelu import Gelu

# How far what `haar_patches` finds spreads, by colour and pattern: the root of its variance + 5e-4
# (Jordan 2024: what is hardly ever there stays small), over images normalised by CIFAR-10's mean
# and deviation. Round figures, within a third of what CIFAR-10's images give as JPEG files.
SPREADS = [3.15, 0.59, 0.63, 0.24], [0.89, 0.068, 0.080, 0.027], [0.43, 0.047, 0.053, 0.026]


class PoolStem(nn.Module):
    """Images (B, 3, H, W) -> tokens (B, C, rows, cols) by convolutions and max-pooling.

    For small images and short trainings: convolutions and pooling in place of patches (CCT, Hassani
    et al. 2021), layers in the order of a network that learns CIFAR-10 in seconds (Jordan
    2024, "94% on CIFAR-10 in 3.29 seconds"). First come the 12 fixed filters of 2x2 pixels that
    `whitening_filters` gives, with both signs and a learned bias. Then each halving is a 3x3
    convolution, max-pooling and a second 3x3 convolution, which begin as identities, with BatchNorm
    and GELU; the first of several is a quarter of `dim` wide. The patch size must be a power of 2.
    """

    def __init__(self, patch_size: tuple[int, int], dim: int):
        super().__init__()
        self.patch_size = patch_size
        filters = whitening_filters()
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


def whitening_filters() -> Tensor:
    """(12, 3, 2, 2): 2x2 colour patches that natural images hardly mix, and find equally often.

    Haar's four patterns of 2x2 pixels, each in brightness, red against blue, and green against
    both: very nearly the principal components of small patches (Ruderman et al. 1998). Each is
    divided by the standard deviation of what it finds in normalised images.
    """
    return haar_patches() / torch.tensor(SPREADS).reshape(12, 1, 1, 1)


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
