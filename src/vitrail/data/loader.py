"""Which images make which batch, and the loader that serves them to Lightning."""

from collections.abc import Iterator

import numpy as np
import torch

from vitrail.data.batches import Batch, Batches
from vitrail.data.decode import UnreadableImage
from vitrail.errors import UserError


def rank_and_world() -> tuple[int, int]:
    """The rank of this process and the number of processes: (0, 1) outside distributed runs."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


class Order:
    """The batches of an epoch as index arrays; every process has the same number of batches.

    With a seed (training) the order is a function of (seed, epoch) and all batches are full. Images
    that do not fill a batch are left out, other ones every epoch; a share smaller than one batch
    makes one smaller batch. Without a seed (evaluation) every image comes exactly once, in one
    process; the last batch of a process may hold one image more than another's.

    Args:
        count: number of images. Raises `UserError` if there are fewer than processes.
        batch_size: images per batch and process.
        seed: of the shuffle; None keeps the order.
        rank, world: this process and their number; images are dealt out one by one.

    Attributes:
        epoch, start: the epoch of the next iteration, and the batch that it begins with.
    """

    def __init__(
        self, count: int, *, batch_size: int, seed: int | None, rank: int, world: int
    ) -> None:
        if count < world:
            raise UserError(
                f"{world} processes need {world} images, got {count}; start {max(1, count)} at most"
            )
        self.count, self.batch_size, self.seed = count, batch_size, seed
        self.rank, self.world = rank, world
        self.epoch = self.start = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning before every epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Batches in a whole epoch."""
        share = self.count // self.world
        full = share // self.batch_size
        return max(1, full) if self.seed is not None else -(-share // self.batch_size)

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        """(epoch, indices int64 (b,)) of each batch."""
        order, end = np.arange(self.count), self.count
        if self.seed is not None:
            order = np.random.default_rng([self.seed, self.epoch]).permutation(self.count)
            end = min(len(self) * self.batch_size, self.count // self.world)
        edges = [batch * self.batch_size for batch in range(1, len(self))]
        for indices in np.split(order[self.rank :: self.world][:end], edges)[self.start :]:
            yield self.epoch, indices


class Loader:
    """Epochs of batches, the same for any number of workers, resumable within an epoch.

    Lightning tells `sampler` the epoch, and saves and restores the position within it through
    `state_dict`. It does both *after* it has called `iter` for the first epoch, so nothing is read
    before the first batch is asked for. Iterating raises `UnreadableImage`, naming the file.
    """

    def __init__(self, batches: Batches, order: Order, *, workers: int) -> None:
        self.batches, self.sampler = batches, order
        self.batch_sampler = None  # Lightning reads it beside `sampler`
        self._position = self._resume = (0, 0)  # (epoch, batches of it that are done)
        self._loader = torch.utils.data.DataLoader(
            batches,
            sampler=order,
            batch_size=None,  # each key of the order is a whole batch
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # else it would draw from the one that dropout uses
        )

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        epoch, done = self._resume
        self.sampler.start = done if epoch == self.sampler.epoch else 0
        self._resume, self._position = (0, 0), (self.sampler.epoch, self.sampler.start)
        for batch in self._loader:
            if isinstance(batch, UnreadableImage):
                # Not `raise batch`: with its traceback it would hold this frame in a cycle, and
                # workers that the garbage collector ends take seconds.
                raise UnreadableImage(*batch.args)
            self._position = self._position[0], self._position[1] + 1
            yield batch

    @property
    def _iterator(self) -> object:
        """Lightning ends its workers and assigns None; the garbage collector takes seconds."""
        return self._loader._iterator

    @_iterator.setter
    def _iterator(self, iterator: object) -> None:
        self._loader._iterator = iterator

    def state_dict(self) -> dict[str, int]:
        epoch, done = self._position
        return {"epoch": epoch, "batches": done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._resume = state["epoch"], state["batches"]
