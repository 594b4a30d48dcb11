"""Vision transformers assembled from vitrail's attention; state dicts carry timm's names."""

from vitrail.model.vit import ViT

__all__ = ["ViT"]
