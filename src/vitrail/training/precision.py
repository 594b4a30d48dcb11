"""Precisions: Lightning's names in torch's terms, which one a run computes in, and why."""

import platform
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec

import torch

from vitrail.errors import UserError

# As Lightning spells them, with the dtype of weights and images and that of autocast.
DTYPES = {
    "32-true": (torch.float32, None),
    "16-mixed": (torch.float32, torch.float16),
    "bf16-mixed": (torch.float32, torch.bfloat16),
    "16-true": (torch.float16, None),
    "bf16-true": (torch.bfloat16, None),
    "64-true": (torch.float64, None),
    "transformer-engine": (torch.bfloat16, None),
    "transformer-engine-float16": (torch.float16, None),
}
# The short forms are Lightning's aliases, which it discourages by a warning.
ALIASES = {"64": "64-true", "32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}
CPU_BF16 = ("amx_bf16", "avx512_bf16", "sve_bf16", "bf16")  # x86's two, then ARM's two


@dataclass(frozen=True)
class Arithmetic:
    """A precision in torch's terms, for what Lightning does not drive."""

    dtype: torch.dtype  # of weights and images
    autocast: torch.dtype | None  # what operations are cast to

    @classmethod
    def of(cls, precision: str) -> "Arithmetic":
        """That of a name in `DTYPES`. Raises UserError where it takes another library's layers."""
        if precision.startswith("transformer-engine"):
            raise UserError(
                f"precision={precision} needs transformer-engine's layers, which a loop without "
                "Lightning does not have; use bf16-mixed or 32-true"
            )
        return cls(*DTYPES[precision])

    @property
    def scaled(self) -> bool:
        """Whether gradients would vanish unless the loss is scaled."""
        return self.autocast is torch.float16

    def casting(self, device: str) -> AbstractContextManager:
        """The context of a forward pass."""
        return nullcontext() if self.autocast is None else torch.autocast(device, self.autocast)


def attention_dtype(precision: str) -> torch.dtype:
    """The dtype of q, k and v under a name in `DTYPES`."""
    dtype, autocast = DTYPES[precision]
    return autocast or dtype


@dataclass(frozen=True)
class Hardware:
    """What decides the precision on a device."""

    device: str  # torch's device type
    name: str  # for messages
    bf16: str | None  # what computes bf16 natively, if anything does; emulation does not count

    @classmethod
    def of(cls, device: torch.device) -> "Hardware":
        """The description of a device of this machine."""
        if device.type == "cuda":
            native = torch.cuda.is_bf16_supported(including_emulation=False)
            name = torch.cuda.get_device_name(device)
            return cls("cuda", name, "tensor cores" if native else None)
        if device.type == "cpu":
            capabilities = torch.cpu.get_capabilities()
            native = [name for name in CPU_BF16 if capabilities.get(name)]
            return cls("cpu", f"this {platform.machine()} CPU", " and ".join(native) or None)
        # Apple's first GPUs emulate bf16 and torch does not tell them from later ones.
        return cls(device.type, f"this {device.type} device", None)


def choose(precision: str | int, hardware: Hardware) -> tuple[str, str]:
    """The name for Lightning's `Trainer(precision=…)`, and the reason.

    Any of Lightning's names or aliases but `auto` is kept. Raises UserError for an unknown name and
    for one that this hardware cannot serve.
    """
    if precision == "auto":
        if hardware.bf16 is None:
            return "32-true", f"{hardware.name} is not known to compute bf16 natively"
        return "bf16-mixed", f"{hardware.name} computes bf16 natively ({hardware.bf16})"
    name = ALIASES.get(str(precision), str(precision))
    if name not in DTYPES:
        near = get_close_matches(name, ("auto", *DTYPES, *ALIASES)) or ("auto", *DTYPES)
        raise UserError(f"precision must be {' or '.join(near)}, got {precision}")
    if reason := _refusal(name, hardware):
        raise UserError(f"precision={precision} {reason}")
    if name.startswith("bf16") and hardware.device == "cpu" and hardware.bf16 is None:
        return name, f"asked for; {hardware.name} emulates bf16 in software"
    return name, "asked for"


def _refusal(name: str, hardware: Hardware) -> str | None:
    if name.startswith("16") and hardware.device == "cpu":
        return (
            "computes in fp16, which CPUs do many times slower than float32; "
            f"use {'bf16-mixed' if hardware.bf16 else '32-true'}"
        )
    if name == "64-true" and hardware.device == "mps":
        return "computes in float64, which Apple's GPUs lack; use 32-true or trainer=cpu"
    if name.startswith("transformer-engine"):
        if hardware.device != "cuda":
            return f"computes in fp8 on NVIDIA GPUs alone, not on {hardware.name}; use auto"
        if find_spec("transformer_engine") is None:
            return "needs the package transformer-engine; install it or use bf16-mixed"
    return None
