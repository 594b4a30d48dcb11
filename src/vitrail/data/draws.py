"""Random numbers as a function of (seed, epoch, image), in whichever process or batch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch


class Draws(NamedTuple):
    """The random numbers of some images in one epoch, (B,) each, named by what they decide.

    All but the last two are float64 in [0, 1).
    """

    flip: np.ndarray
    top: np.ndarray
    left: np.ndarray
    erase: np.ndarray
    erase_area: np.ndarray
    erase_aspect: np.ndarray
    erase_top: np.ndarray
    erase_left: np.ndarray
    seed: np.ndarray  # uint64, for what has a generator of its own
    alternate: np.ndarray  # bool, the other way in the next epoch


def draws_for(seed: int, epoch: int, indices: np.ndarray) -> Draws:
    """The draws of the images at `indices` (B,): a function of (seed, epoch, index) alone.

    Image i reads its own places of one SplitMix64 stream (Steele, Lea and Flood, 2014), which
    leaves no state to hand to workers or to restore on resume.
    """
    bits = _stream(seed, epoch, indices, len(Draws._fields) - 1)
    uniform = (bits[:-1] >> np.uint64(11)) * 2.0**-53
    first = _stream(seed, 0, indices, 1)[0] & np.uint64(1)
    return Draws(*uniform, seed=bits[-1], alternate=first == epoch % 2)


def _stream(seed: int, epoch: int, indices: np.ndarray, count: int) -> np.ndarray:
    """`count` random numbers of each image: uint64 (count, B)."""
    start = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)
    offsets = np.arange(1, count + 1, dtype=np.uint64)[:, None]
    places = indices.astype(np.uint64) * np.uint64(count) + offsets
    bits = start + places * np.uint64(0x9E3779B97F4A7C15)  # (draws, B)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let torch's global CPU generator start at `seed`, and put it back afterwards."""
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: that would seed the accelerator too, and tie dropout to the images.
        torch.default_generator.manual_seed(seed)
        yield
