"""Vision transformers assembled from vitrail's attention; state dicts carry timm's names."""

import sys

if "wandb" not in sys.modules:
    # timm would import it where it is installed, for a script of its own: time, and a risk, that
    # only a run which logs there should take.
    sys.modules["wandb"] = None
    try:
        import timm  # noqa: F401
    finally:
        del sys.modules["wandb"]

from vitrail.model.vit import ViT

__all__ = ["ViT"]
