"""Small images, decoded once into one array in RAM."""

from functools import partial

import torch
from torch import Tensor

from vitrail.data.images import Images
from vitrail.data.resize import CenterCrop
from vitrail.data.scan import Chunks, scan

CHUNK_BYTES = 2**20  # what a process hands over at once, within a container's shared memory


def cache_bytes(count: int, size: tuple[int, int]) -> int:
    """What `decode_all` takes for `count` images of `size` (H, W)."""
    return count * 3 * size[0] * size[1]


def decode_all(images: Images, fit: CenterCrop, *, title: str) -> tuple[Images, dict[int, str]]:
    """Decode every image and bring it to one size.

    Returns: the images with their pixels, uint8 (n, 3, H, W), and what the unreadable ones said, by
    index; the pixels of those are undefined and must not be used.
    """
    if images.in_memory and images.source.shape[-2:] == fit.size:
        return images, {}
    size = max(1, CHUNK_BYTES // cache_bytes(1, fit.size))
    pixels = torch.empty(len(images), 3, *fit.size, dtype=torch.uint8)
    unreadable: dict[int, str] = {}
    chunks = scan(
        Chunks(partial(_decoded, images, fit), len(images), (3, *fit.size), size), title=title
    )
    for into, (found, complaints) in zip(pixels.split(size), chunks, strict=True):
        into.copy_(found)
        unreadable |= complaints
    return Images(pixels, images.labels), unreadable


def _decoded(images: Images, fit: CenterCrop, index: int) -> Tensor:
    return fit(images.pixels(index))
