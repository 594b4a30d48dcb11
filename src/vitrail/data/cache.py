"""Small images, decoded once into one array in RAM."""

import torch

from vitrail.data.images import Images
from vitrail.data.resize import CenterCrop
from vitrail.data.scan import scan


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
    pixels = torch.empty(len(images), 3, *fit.size, dtype=torch.uint8)

    def decode_into(index: int) -> None:
        pixels[index] = fit(images.pixels(index))

    unreadable = scan(len(images), decode_into, title=title)
    return Images(pixels, images.labels), unreadable
