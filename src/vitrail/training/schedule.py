"""The learning rate as a function of the optimizer step."""

import math
from dataclasses import dataclass
from functools import partial

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from vitrail.errors import UserError


@dataclass(frozen=True, kw_only=True)
class WarmupCosine:
    """Linear warm-up to the peak, then half a cosine down (Loshchilov & Hutter 2017).

    warmup: share of all optimizer steps that the rise takes, 0 to 1.
    final: the rate that the fall ends at, as a share of the peak, 0 to 1.
    """

    warmup: float
    final: float

    def __post_init__(self):
        for name, share in (("warmup", self.warmup), ("final", self.final)):
            if not 0 <= share <= 1:
                raise UserError(f"schedule.{name}={share} is a share; use a number from 0 to 1")

    def factor(self, step: int, total_steps: int) -> float:
        """What step number `step` (from 0) multiplies the peak by; nothing but the step decides it.

        The first step is already above 0, the peak is reached once, `final` when training is over.
        """
        rise = round(self.warmup * total_steps)
        if step < rise:
            return (step + 1) / (rise + 1)
        fallen = min(1.0, (step - rise) / max(1, total_steps - rise))
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * fallen)) / 2

    def attach(self, optimizer: Optimizer, total_steps: int) -> LambdaLR:
        """A scheduler to be stepped after every optimizer step; groups keep their own peaks."""
        return LambdaLR(optimizer, partial(self.factor, total_steps=total_steps))
