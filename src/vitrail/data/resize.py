"""Two ways to bring images of any shape to the model: one shape for all, or each its own."""

from dataclasses import dataclass

from torch import Tensor
from torchvision.transforms.v2.functional import resize, resized_crop


@dataclass(frozen=True)
class CenterCrop:
    """The largest centred part with the aspect of `size` (H, W), resized to `size`, antialiased."""

    size: tuple[int, int]

    def __call__(self, image: Tensor) -> Tensor:
        """uint8 (3, h, w) -> (3, H, W)."""
        (rows, cols), (height, width) = self.size, image.shape[-2:]
        if (rows, cols) == (height, width):
            return image
        scale = min(height / rows, width / cols)
        part = max(1, round(rows * scale)), max(1, round(cols * scale))
        corner = (height - part[0]) // 2, (width - part[1]) // 2
        # Cropping first keeps a 1 x 1000 strip from becoming a gigapixel on its way to a square.
        return resized_crop(image, *corner, *part, size=list(self.size), antialias=True)


@dataclass(frozen=True)
class FitInside:
    """The whole image in its own aspect, as large as fits inside `size` (H, W), antialiased."""

    size: tuple[int, int]

    def __call__(self, image: Tensor) -> Tensor:
        """uint8 (3, h, w) -> (3, at most H, at most W)."""
        (rows, cols), (height, width) = self.size, image.shape[-2:]
        scale = min(rows / height, cols / width)
        fitted = max(1, round(height * scale)), max(1, round(width * scale))
        return image if fitted == (height, width) else resize(image, list(fitted), antialias=True)
