"""Visiting every image of a split before training: to decode it, or to see that it can be read."""

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

from vitrail.data.decode import UnreadableImage, look_at
from vitrail.data.images import Images

FEW = 1000  # images that are done before other processes have started


@dataclass(frozen=True)
class Chunks(torch.utils.data.Dataset):
    """So many images at a time: what `visit` makes of each, uint8 (n, *shape), and complaints.

    visit: called with an index below `count`. Complaints are of unreadable images, by index; what
    stands in their places is undefined.
    """

    visit: Callable[[int], Tensor]
    count: int
    shape: tuple[int, ...]
    size: int

    def __len__(self) -> int:
        return math.ceil(self.count / self.size)

    def __getitem__(self, number: int) -> tuple[Tensor, dict[int, str]]:
        indices = range(number * self.size, min((number + 1) * self.size, self.count))
        found = torch.empty(len(indices), *self.shape, dtype=torch.uint8)
        unreadable = {}
        for place, index in enumerate(indices):
            try:
                found[place] = self.visit(index)
            except UnreadableImage as error:
                unreadable[index] = str(error)
        return found, unreadable


def scan(chunks: Chunks, *, title: str) -> Iterator[tuple[Tensor, dict[int, str]]]:
    """The chunks in their order, made on all cores; a terminal shows progress.

    By processes: of small files most of the work is Python's, at which threads wait for each other.
    """
    console = Console(stderr=True)
    # The processes of a run are told apart before they have met.
    quiet = not console.is_terminal or rank_zero_only.rank > 0
    loader = torch.utils.data.DataLoader(
        chunks,
        batch_size=None,
        num_workers=suggested_max_num_workers(1) if chunks.count > FEW else 0,
        worker_init_fn=_leave_interrupts,
        generator=torch.Generator(),  # or it would draw from the one that dropout uses
    )
    return track(loader, title, len(chunks), console=console, transient=True, disable=quiet)


def look_at_all(images: Images, *, title: str) -> dict[int, str]:
    """Look at every file: what the damaged ones said, by index."""
    unreadable: dict[int, str] = {}
    chunks = Chunks(partial(_look, images), len(images), shape=(0,), size=1024)
    for _, complaints in scan(chunks, title=title):
        unreadable |= complaints
    return unreadable


def _look(images: Images, index: int) -> Tensor:
    look_at(images.path(index))
    return torch.empty(0, dtype=torch.uint8)


def _leave_interrupts(_: int) -> None:
    """Ctrl-C is for the process that asked, which ends the others without their tracebacks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
