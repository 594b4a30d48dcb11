"""The learning rate as a function of the optimizer step, and of the time where that is limited."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from vitrail.errors import UserError

TIMED_STEPS = 10_000  # into which a training that only time ends is divided


@dataclass(frozen=True, kw_only=True)
class WarmupCosine:
    """Linear warm-up to the peak, then half a cosine down (Loshchilov & Hutter 2017).

    Counts optimizer steps. Under `trainer.max_time` the rate follows the larger of two shares, that
    of the steps and that of the time, and reaches `final` with whichever limit comes first. A
    resumed run goes on from both.

    Args:
        warmup: share of the training that the rise takes, in [0, 1].
        final: the rate at the end, as a share of the peak, in [0, 1].
    """

    warmup: float
    final: float

    def __post_init__(self):
        for name, share in (("warmup", self.warmup), ("final", self.final)):
            if not 0 <= share <= 1:
                raise UserError(f"optim.schedule.{name} must be in [0, 1], got {share}")

    def factor(self, step: float, total_steps: int) -> float:
        """What `step` (from 0) multiplies the peak by.

        The first step is above 0, the peak is reached once, `final` when training is over.
        """
        rise = round(self.warmup * total_steps)
        if step < rise:
            return (step + 1) / (rise + 1)
        fallen = min(1.0, (step - rise) / max(1, total_steps - rise))
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * fallen)) / 2

    def attach(
        self, optimizer: Optimizer, total_steps: float, elapsed: Callable[[], float] | None = None
    ) -> LambdaLR:
        """A scheduler to be stepped after every optimizer step; groups keep their own peaks.

        Args:
            optimizer: whose groups hold their peaks as `lr`.
            total_steps: may be infinite where the time is limited.
            elapsed: the share of a limited time that has passed, alike in every process.

        Raises:
            UserError: neither steps nor time are limited.
        """
        if math.isinf(total_steps) and elapsed is None:
            limits = "trainer.max_epochs, trainer.max_steps or trainer.max_time"
            raise UserError(f"the learning rate needs an end to fall to; set {limits}")
        total = TIMED_STEPS if math.isinf(total_steps) else int(total_steps)

        def factor(step: int) -> float:
            taken = 0 if math.isinf(total_steps) else step
            return self.factor(max(taken, elapsed() * total) if elapsed else taken, total)

        return LambdaLR(optimizer, factor)
