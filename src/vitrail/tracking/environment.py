"""What a run computed on: versions, processor and graphics cards."""

import os
import platform
from importlib import metadata
from typing import Any

import torch
from torch.utils import collect_env

import vitrail
from vitrail.attention.selection.tune import cpu_name

# Those that decide what is computed and how fast; looked up without importing them.
PACKAGES = (
    "torch", "torchvision", "timm", "pytorch-lightning", "triton", "numpy",
    "flash-attn", "flash-attn-3", "flash-attn-4",
)  # fmt: skip


def describe() -> dict[str, Any]:
    """Plain containers that tell this machine and its libraries from others; no GPU is None."""
    return {
        "vitrail": vitrail.__version__,
        "python": platform.python_version(),
        "packages": {
            name: found.version for name in PACKAGES for found in metadata.distributions(name=name)
        },
        "system": platform.platform(),
        "cpu": {
            "name": cpu_name(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
        },
        "gpu": _gpu() if torch.cuda.is_available() else None,
    }


def _gpu() -> dict[str, Any]:
    cards = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return {
        "cards": [
            {
                "name": card.name,
                "compute": f"{card.major}.{card.minor}",
                "memory_gib": round(card.total_memory / 2**30, 1),
            }
            for card in cards
        ],
        "driver": collect_env.get_nvidia_driver_version(collect_env.run),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }
