"""Which precision a run computes in, and why."""

import platform
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec

import torch

from vitrail.errors import UserError

# As Lightning spells them; the short forms are its aliases, which it discourages by a warning.
NAMES = (
    "32-true",
    "16-mixed",
    "bf16-mixed",
    "16-true",
    "bf16-true",
    "64-true",
    "transformer-engine",
    "transformer-engine-float16",
)
ALIASES = {"64": "64-true", "32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}
CPU_BF16 = ("amx_bf16", "avx512_bf16", "sve_bf16", "bf16")  # x86's two, then ARM's two


@dataclass(frozen=True)
class Hardware:
    """What decides a precision about a device.

    device: torch's device type. name: for sentences. bf16: what computes bf16 natively, None where
    nothing does (software that widens every number to float32 does not count).
    """

    device: str
    name: str
    bf16: str | None

    @classmethod
    def of(cls, device: torch.device) -> "Hardware":
        """The description of a device of this machine."""
        if device.type == "cuda":
            native = torch.cuda.is_bf16_supported(including_emulation=False)
            return cls(
                "cuda", torch.cuda.get_device_name(device), "tensor cores" if native else None
            )
        if device.type == "cpu":
            capabilities = torch.cpu.get_capabilities()
            native = [name for name in CPU_BF16 if capabilities.get(name)]
            return cls("cpu", f"this {platform.machine()} CPU", " and ".join(native) or None)
        # Apple's first GPUs widen bf16 and torch does not tell them from later ones; of other
        # devices it tells nothing at all.
        return cls(device.type, f"this {device.type} device", None)


def choose(precision: str | int, hardware: Hardware) -> tuple[str, str]:
    """The name for Lightning's `Trainer(precision=…)`, and the reason as half a sentence.

    precision: `auto`, or any of Lightning's names and aliases, which are then kept.
    Raises UserError for a name that does not exist or that this hardware cannot serve.
    """
    if precision == "auto":
        if hardware.bf16 is None:
            return "32-true", f"{hardware.name} is not known to compute bf16 natively"
        return "bf16-mixed", f"{hardware.name} computes bf16 natively ({hardware.bf16})"
    name = ALIASES.get(str(precision), str(precision))
    if name not in NAMES:
        near = get_close_matches(name, ("auto", *NAMES, *ALIASES)) or ("auto", *NAMES)
        raise UserError(f"precision={precision} does not exist; use {' or '.join(near)}")
    if reason := _refusal(name, hardware):
        raise UserError(f"precision={precision} {reason}")
    slow = name.startswith("bf16") and hardware.device == "cpu" and hardware.bf16 is None
    return name, f"asked for; {hardware.name} widens bf16 in software" if slow else "asked for"


def _refusal(name: str, hardware: Hardware) -> str | None:
    if name.startswith("16") and hardware.device == "cpu":
        return (
            "computes in fp16, which CPUs do many times slower than float32; "
            f"use {'bf16-mixed' if hardware.bf16 else '32-true'}"
        )
    if name == "64-true" and hardware.device == "mps":
        return "computes in float64, which Apple's GPUs do not have; use 32-true or trainer=cpu"
    if name.startswith("transformer-engine"):
        if hardware.device != "cuda":
            return f"computes in fp8 on NVIDIA GPUs alone, not on {hardware.name}; use auto"
        if find_spec("transformer_engine") is None:
            return "needs the package transformer-engine; install it or use bf16-mixed"
    return None
