"""A pass over every image of a split before training: to decode it, or to check that it can be."""

import signal
from collections.abc import Callable
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
CHUNK_IMAGES = 1024
FEW = 1000  # images that are done before other processes have started


def decode_all(images: Images, fit: CenterCrop, *, title: str) -> tuple[Images, dict[int, str]]:
    """Decode every image and resize it to one size.

    Returns: the images with their pixels, uint8 (n, 3, H, W), and the errors of unreadable ones by
    index; the pixels of those are undefined and must not be used.
    """
    if images.in_memory and images.source.shape[-2:] == fit.size:
        return images, {}
    pixels = torch.empty(len(images), 3, *fit.size, dtype=torch.uint8)
    errors = _read_all(partial(_decode, images, fit), pixels, title)
    return Images(pixels, images.labels), errors


def check_readable(images: Images, *, title: str) -> dict[int, str]:
    """Check every file, see `decode.check_file`: the errors of the damaged ones, by index."""
    return _read_all(partial(_check, images), torch.empty(len(images), 0), title)


def _decode(images: Images, fit: CenterCrop, index: int) -> Tensor:
    return fit(images.pixels(index))


def _check(images: Images, index: int) -> Tensor:
    check_file(images.path(index))
    return torch.empty(0)


@dataclass(frozen=True)
class _Reader(torch.utils.data.Dataset):
    """`read` of each index (n,), stacked to (n, *shape), and the errors by index."""

    read: Callable[[int], Tensor]
    shape: torch.Size
    dtype: torch.dtype

    def __getitem__(self, indices: Tensor) -> tuple[Tensor, dict[int, str]]:
        found, errors = torch.empty(len(indices), *self.shape, dtype=self.dtype), {}
        for place, index in enumerate(indices.tolist()):
            try:
                found[place] = self.read(index)
            except UnreadableImage as error:
                errors[index] = str(error)
        return found, errors


def _read_all(read: Callable[[int], Tensor], into: Tensor, title: str) -> dict[int, str]:
    """Fill `into` (n, …) with `read` of each index, on all cores; a terminal shows progress.

    In processes: for small files most of the work is Python's, which threads cannot share. Returns
    the errors of unreadable images by index.
    """
    console = Console(stderr=True)
    # Lightning knows the rank of a process before they are connected.
    quiet = not console.is_terminal or rank_zero_only.rank > 0
    size = min(CHUNK_IMAGES, max(1, CHUNK_BYTES // max(1, into.shape[1:].numel())))
    chunks = torch.arange(len(into)).split(size)
    loader = torch.utils.data.DataLoader(
        _Reader(read, into.shape[1:], into.dtype),
        sampler=chunks,
        batch_size=None,
        num_workers=suggested_max_num_workers(1) if len(into) > FEW else 0,
        worker_init_fn=_ignore_interrupts,
        generator=torch.Generator(),  # else it would draw from the one that dropout uses
    )
    errors: dict[int, str] = {}
    shown = track(loader, title, len(chunks), console=console, transient=True, disable=quiet)
    for indices, (found, failed) in zip(chunks, shown, strict=True):
        into[indices] = found
        errors |= failed
    return errors


def _ignore_interrupts(_: int) -> None:
    """Ctrl-C is for the main process, which ends the workers without their tracebacks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
