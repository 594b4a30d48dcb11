"""From an image to a map of tokens by convolutions and max-pooling, for short trainings."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.model.conv_stem import stage_widths


class PoolStem(nn.Module):
    """Images (B, 3, H, W) -> tokens (B, C, rows, cols) by convolutions and max-pooling.

    For small images and short trainings: convolutions and pooling in place of patches (CCT, Hassani
    et al. 2021), layers in the order of a network that learns CIFAR-10 in seconds (Jordan
    2024, "94% on CIFAR-10 in 3.29 seconds"). First come the 12 fixed filters of 2x2 pixels that
    `whitening_filters` gives, with both signs. Then each halving is a 3x3 convolution, max-pooling
    and a second 3x3 convolution, which begin as identities, with BatchNorm and GELU; the width
    doubles with each up to `dim`. The patch size must be a power of 2.
    """

    def __init__(self, patch_size: tuple[int, int], dim: int):
        super().__init__()
        self.patch_size = patch_size
        filters = whitening_filters()
        self.register_buffer("filters", torch.cat([filters, -filters]), persistent=False)
        self.norm = nn.BatchNorm2d(len(self.filters))
        widths = [len(self.filters), *stage_widths("pool", patch_size, dim)]
        self.stages = nn.Sequential(*(_stage(*ends) for ends in pairwise(widths)))

    def forward(self, images: Tensor) -> Tensor:
        # Pixel by pixel in memory, all channels together, is what a CPU convolves fastest.
        images = images.contiguous(memory_format=torch.channels_last)
        found = F.conv2d(F.pad(images, (0, 1, 0, 1)), self.filters)
        return self.stages(F.gelu(self.norm(found)))


def whitening_filters() -> Tensor:
    """(12, 3, 2, 2): an orthonormal basis of 2x2 colour patches that natural images hardly mix.

    Haar's four patterns of 2x2 pixels, each in brightness, red against blue, and green against
    both: very nearly the principal components of small patches (Ruderman et al. 1998), so that
    BatchNorm behind them whitens the input.
    """
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
        first, nn.MaxPool2d(2), nn.BatchNorm2d(after), nn.GELU(),
        second, nn.BatchNorm2d(after), nn.GELU(),
    )  # fmt: skip
