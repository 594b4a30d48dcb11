"""A pass over every image of a split before training: to decode it, or to check that it can be."""

import math
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from lightning_fabric.utilities.data import suggested_max_num_workers
from pytorch_lightning.utilities import rank_zero_only
from rich.console import Console
from rich.progress import track
from torch import Tensor

from vitrail.data.decode import UnreadableImage, check_file
from vitrail.data.images import Images
from vitrail.data.resize import CenterCrop

CHUNK_BYTES = 2**20  # what a process hands over at once, within a container's shared memory
FEW = 1000  # images that are done before other processes have started


def decoded_bytes(count: int, size: tuple[int, int]) -> int:
    """The RAM that `decode_all` takes for `count` images of `size` (H, W)."""
    return count * 3 * size[0] * size[1]


def decode_all(images: Images, fit: CenterCrop, *, title: str) -> tuple[Images, dict[int, str]]:
    """Decode every image and resize it to one size.

    Returns: the images with their pixels, uint8 (n, 3, H, W), and the errors of unreadable ones by
    index; the pixels of those are undefined and must not be used.
    """
    if images.in_memory and images.source.shape[-2:] == fit.size:
        return images, {}
    size = max(1, CHUNK_BYTES // decoded_bytes(1, fit.size))
    pixels = torch.empty(len(images), 3, *fit.size, dtype=torch.uint8)
    errors: dict[int, str] = {}
    chunks = _Chunks(partial(_decode, images, fit), len(images), (3, *fit.size), size)
    for into, (part, failed) in zip(pixels.split(size), _visit(chunks, title), strict=True):
        into.copy_(part)
        errors |= failed
    return Images(pixels, images.labels), errors


def check_readable(images: Images, *, title: str) -> dict[int, str]:
    """Check every file, see `decode.check_file`: the errors of the damaged ones, by index."""
    chunks = _Chunks(partial(_check, images), len(images), shape=(0,), size=1024)
    errors: dict[int, str] = {}
    for _, failed in _visit(chunks, title):
        errors |= failed
    return errors


def _decode(images: Images, fit: CenterCrop, index: int) -> Tensor:
    return fit(images.pixels(index))


def _check(images: Images, index: int) -> Tensor:
    check_file(images.path(index))
    return torch.empty(0, dtype=torch.uint8)


@dataclass(frozen=True)
class _Chunks(torch.utils.data.Dataset):
    """`size` images at a time: `visit(index)` of each, uint8 (n, *shape), and errors by index."""

    visit: Callable[[int], Tensor]
    count: int
    shape: tuple[int, ...]
    size: int

    def __len__(self) -> int:
        return math.ceil(self.count / self.size)

    def __getitem__(self, number: int) -> tuple[Tensor, dict[int, str]]:
        indices = range(number * self.size, min((number + 1) * self.size, self.count))
        visited = torch.empty(len(indices), *self.shape, dtype=torch.uint8)
        errors = {}
        for place, index in enumerate(indices):
            try:
                visited[place] = self.visit(index)
            except UnreadableImage as error:
                errors[index] = str(error)
        return visited, errors


def _visit(chunks: _Chunks, title: str) -> Iterator[tuple[Tensor, dict[int, str]]]:
    """The chunks in order, made on all cores; a terminal shows progress.

    In processes: for small files most of the work is Python's, which threads cannot share.
    """
    console = Console(stderr=True)
    # Lightning knows the rank of a process before they are connected.
    quiet = not console.is_terminal or rank_zero_only.rank > 0
    loader = torch.utils.data.DataLoader(
        chunks,
        batch_size=None,
        num_workers=suggested_max_num_workers(1) if chunks.count > FEW else 0,
        worker_init_fn=_ignore_interrupts,
        generator=torch.Generator(),  # else it would draw from the one that dropout uses
    )
    return track(loader, title, len(chunks), console=console, transient=True, disable=quiet)


def _ignore_interrupts(_: int) -> None:
    """Ctrl-C is for the main process, which ends the workers without their tracebacks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
