"""Batches for Lightning: sharded, resumable, and the same for any number of workers."""

from collections.abc import Iterator

import torch

from vitrail.data.batches import Batches
from vitrail.data.collate import Batch
from vitrail.data.decode import UnreadableImage
from vitrail.data.order import Order


class Loader:
    """One epoch of batches after another.

    Lightning tells `sampler` the epoch, and saves and restores the place within it through
    `state_dict`. Lightning does both *after* it has called `iter` for the first epoch, so nothing
    is read before the first batch is asked for.

    Raises:
        UnreadableImage: from the iteration, naming the file.
    """

    def __init__(self, batches: Batches, order: Order, *, workers: int) -> None:
        self.batches, self.sampler = batches, order
        self.batch_sampler = None  # Lightning reads it beside `sampler`
        self._place = self._resume = (0, 0)  # (epoch, batches of it that are done)
        self._loader = torch.utils.data.DataLoader(
            batches,
            sampler=order,
            batch_size=None,  # each key of the order is a whole batch
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=torch.cuda.is_available(),
            # Without one of its own, starting an epoch would draw from the generator that dropout
            # uses.
            generator=torch.Generator(),
        )

    def __len__(self) -> int:
        """Batches in a whole epoch, the same in every process."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        epoch, done = self._resume
        self.sampler.start = done if epoch == self.sampler.epoch else 0
        self._resume = (0, 0)
        self._place = self.sampler.epoch, self.sampler.start
        for batch in self._loader:
            if isinstance(batch, UnreadableImage):
                # Not `raise batch`: with its traceback it would hold this frame in a cycle, and
                # workers that the garbage collector ends take seconds.
                raise UnreadableImage(*batch.args)
            self._place = self._place[0], self._place[1] + 1
            yield batch

    @property
    def _iterator(self) -> object:
        """Where Lightning looks for workers to shut down when it is done, and then assigns None.

        Left to the garbage collector, each worker would take seconds to end.
        """
        return self._loader._iterator

    @_iterator.setter
    def _iterator(self, iterator: object) -> None:
        self._loader._iterator = iterator

    def state_dict(self) -> dict[str, int]:
        epoch, done = self._place
        return {"epoch": epoch, "batches": done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._resume = state["epoch"], state["batches"]
