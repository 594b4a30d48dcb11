"""What a precision means in torch's terms, for steps that Lightning does not drive."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from vitrail.errors import UserError

DTYPES = {"16": torch.float16, "bf16": torch.bfloat16, "32": torch.float32, "64": torch.float64}


@dataclass(frozen=True)
class Arithmetic:
    """One of Lightning's precisions in torch's terms.

    dtype: of weights and images. autocast: what operations are cast to, None where nothing is.
    """

    dtype: torch.dtype
    autocast: torch.dtype | None

    @classmethod
    def of(cls, precision: str) -> "Arithmetic":
        """That of a name such as `bf16-mixed`; ValueError for one that a bare loop cannot do."""
        name, _, kind = precision.partition("-")
        if name not in DTYPES:
            raise UserError(
                f"precision={precision} is computed by another library's layers, which a loop "
                "without Lightning does not have; use bf16-mixed or 32-true"
            )
        if kind == "mixed":
            return cls(torch.float32, DTYPES[name])
        return cls(DTYPES[name], None)

    @property
    def scaled(self) -> bool:
        """Whether gradients would vanish unless the loss is scaled."""
        return self.autocast is torch.float16

    def casting(self, device: str) -> AbstractContextManager:
        """The context that a forward pass is made in."""
        return nullcontext() if self.autocast is None else torch.autocast(device, self.autocast)
