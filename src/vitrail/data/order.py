"""Which images make which batch, for one process of many."""

from collections.abc import Iterator

import numpy as np
import torch.distributed

from vitrail.data.draws import permutation
from vitrail.errors import UserError


def process_and_count() -> tuple[int, int]:
    """The rank of this process and how many share the images: (0, 1) if it is alone."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


class Order:
    """The batches of an epoch as index arrays, as many in every process.

    Shuffled by a seed (training): the order is a function of (seed, epoch), and all batches are
    full. What does not fill a batch is left out, other images every epoch; a share smaller than one
    batch makes one smaller batch.

    Unshuffled (evaluation): every image comes exactly once, in one process. Where images do not
    divide evenly, the last batch of a process may hold one image more than another's.

    Args:
        count: images to order.
        batch_size: images per batch and process.
        seed: of the shuffling; None keeps the order.
        rank, world: this process and the number of processes; images are dealt out one by one.

    Attributes:
        epoch: the one that the next iteration is of.
        start: the batch that it begins with.

    Raises:
        UserError: fewer images than processes.
    """

    def __init__(
        self, count: int, *, batch_size: int, seed: int | None, rank: int, world: int
    ) -> None:
        if count < world:
            raise UserError(
                f"{count} images are too few for {world} processes; start {max(1, count)} or fewer"
            )
        self.count, self.batch_size, self.seed = count, batch_size, seed
        self.rank, self.world = rank, world
        self.epoch = 0
        self.start = 0

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
        if self.seed is None:
            share = np.arange(self.count)[self.rank :: self.world]
            end = len(share)
        else:
            share = permutation(self.seed, self.epoch, self.count)[self.rank :: self.world]
            end = min(len(self) * self.batch_size, self.count // self.world)
        edges = [batch * self.batch_size for batch in range(len(self))] + [end]
        for batch in range(self.start, len(self)):
            yield self.epoch, share[edges[batch] : edges[batch + 1]]
