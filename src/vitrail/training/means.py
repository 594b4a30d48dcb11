"""Means over the images of several batches, kept where they are computed until somebody asks."""

from torch import Tensor


class Means:
    """Adds up what batches have in the mean; no value is read, so that no GPU is waited for."""

    def __init__(self):
        self._sums: dict[str, tuple[Tensor, int]] = {}

    def add(self, name: str, mean: Tensor, images: int) -> None:
        """A batch of so many images has this mean, a scalar that needs no gradient."""
        total, count = self._sums.get(name, (0.0, 0))
        self._sums[name] = total + mean * images, count + images

    def take(self) -> dict[str, tuple[Tensor, int]]:
        """The mean and the number of images of each since they were taken last."""
        sums, self._sums = self._sums, {}
        return {name: (total / count, count) for name, (total, count) in sums.items()}
