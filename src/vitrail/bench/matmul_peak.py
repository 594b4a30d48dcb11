"""The speed of the machine's own matrix product, which that of a kernel is held against."""

from collections.abc import Callable
from functools import cache

import torch

from vitrail.attention.selection.stopwatch import clock, interleave

SIDES = {"cpu": 1024}  # of square matrices that keep a CPU busy
SIDE = 8192  # and anything else
ROUNDS, SECONDS = 20, 0.5


@cache
def matmul_peak(dtype: torch.dtype, device: str, *, read: Callable[[str], float] = clock) -> float:
    """Floating-point operations a second of the fastest of some products, measured once a process.

    A multiply-add counts as two. float32 on CUDA is whatever torch makes of it, TF32 or not, as it
    is for kernels.
    """
    side = SIDES.get(device, SIDE)
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn(side, side, generator=generator).to(device, dtype) for _ in range(2))
    product = {"product": lambda: one @ other}
    times = interleave(product, device=device, rounds=ROUNDS, seconds=SECONDS, clock=read)
    return 2 * side**3 / min(times["product"].seconds)
