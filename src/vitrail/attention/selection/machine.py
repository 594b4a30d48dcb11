"""What the speed of a kernel depends on besides its inputs: processor, threads and versions."""

import platform
import re
from pathlib import Path

import torch

import vitrail


def cpu_name() -> str:
    """The processor's model name, as far as this system tells."""
    cpuinfo = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text()) if cpuinfo.exists() else None
    return named[1] if named else platform.processor() or platform.machine()


def machine(device: str) -> dict[str, str | int | None]:
    """Plain values that tell the machines apart on which times would differ, for a device type."""
    found = {"vitrail": vitrail.__version__, "torch": torch.__version__, "device": device}
    if device == "cuda":
        card = torch.cuda.get_device_properties(torch.cuda.current_device())
        return found | {"name": card.name, "cuda": torch.version.cuda}
    return found | {
        "name": cpu_name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
