"""Augmentation of training images: torchvision's transforms per image, and batch operations.

Batch operations serve small images, for which a call per image would cost more than the work.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor
from torchvision.transforms import v2

from vitrail.data.draws import Draws
from vitrail.data.resize import RandomResizedCrop
from vitrail.errors import UserError

ALTERNATE = "alternate"
_PADDING_MODES = ("constant", "reflect")
_POLICIES = {"randaugment": v2.RandAugment, "trivial": v2.TrivialAugmentWide}


@dataclass(kw_only=True)
class Augment:
    """The augmentation of training images; each knob is off at None, False or 0.

    Raises `UserError` for a value outside its range.

    Args:
        scale: (smallest, largest) share of the area that a random resized crop keeps. Off, images
            are resized as in evaluation.
        auto: "randaugment" or "trivial" (TrivialAugmentWide), with torchvision's defaults.
        crop_padding: pixels put around the image before a random crop back to its size.
        padding_mode: "constant" for black, or "reflect".
        flip: flip half of the images left to right: True draws anew in every epoch, "alternate"
            flips an image in every other one (Jordan 2024, "94% on CIFAR-10 in 3.29 seconds").
        erase: share of the images that get a random box of the mean colour.
    """

    scale: Sequence[float] | None
    auto: str | None
    crop_padding: int | None
    padding_mode: str
    flip: bool | str
    erase: float

    def __post_init__(self) -> None:
        # A plain list, because reading numbers from Hydra's is slow.
        self.scale = scale = None if self.scale is None else list(self.scale)
        shares = scale is None or (len(scale) == 2 and 0 < scale[0] <= scale[1] <= 1)
        modes, policies = " or ".join(_PADDING_MODES), ", ".join(_POLICIES)
        for key, holds, rule in (
            ("scale", shares, "[min, max] with 0 < min <= max <= 1"),
            ("auto", self.auto in (None, *_POLICIES), f"{policies} or null"),
            ("crop_padding", (self.crop_padding or 0) >= 0, ">= 0 pixels"),
            ("padding_mode", self.padding_mode in _PADDING_MODES, modes),
            ("flip", self.flip in (True, False, ALTERNATE), f"true, false or {ALTERNATE}"),
            ("erase", 0 <= self.erase <= 1, "in [0, 1]"),
        ):
            if not holds:
                raise UserError(f"data.augment.{key} must be {rule}, got {getattr(self, key)}")
        # Whether images need `per_image` even when they have their size already.
        self.works_per_image = scale is not None or self.auto is not None

    def per_image(self, fit: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """The transform of one uint8 (3, h, w) image, random by torch's global generator, where
        evaluation would `fit` it to `fit.size` (H, W)."""
        steps = [fit]
        if self.scale is not None:
            ratio = fit.size[1] / fit.size[0]
            steps = [RandomResizedCrop(fit.size, self.scale, (3 / 4 * ratio, 4 / 3 * ratio))]
        if self.auto is not None:
            steps.append(_POLICIES[self.auto]())
        return v2.Compose(steps)

    def whole_batch(self, images: Tensor, draws: Draws) -> Tensor:
        """Crop and flip: uint8 (B, 3, H, W) -> the same."""
        if self.crop_padding:
            images = _random_crop(images, self.crop_padding, self.padding_mode, draws)
        if self.flip:
            which = draws.alternate if self.flip == ALTERNATE else draws.flip < 0.5
            flipped = images.numpy().copy()
            flipped[which] = flipped[which][..., ::-1]
            images = torch.from_numpy(flipped)
        return images

    def erased(self, images: Tensor, draws: Draws) -> Tensor:
        """Random erasing in place: boxes of 0, the mean, in normalised images (B, 3, H, W)."""
        if self.erase:
            chosen = draws.erase < self.erase
            box = _boxes(*images.shape[-2:], Draws(*(numbers[chosen] for numbers in draws)))
            images[chosen] = images[chosen].masked_fill(box[:, None], 0)
        return images


# What evaluation does to images.
UNCHANGED = Augment(
    scale=None, auto=None, crop_padding=None, padding_mode="constant", flip=False, erase=0.0
)


def _random_crop(images: Tensor, padding: int, mode: str, draws: Draws) -> Tensor:
    """Pad images on each side and crop them back to their size: (B, 3, H, W) -> the same."""
    *_, height, width = images.shape
    around = (padding, padding)
    framed = np.pad(images.numpy(), ((0, 0), (0, 0), around, around), mode)
    windows = sliding_window_view(framed, (height, width), axis=(2, 3))  # (B, 3, row, col, H, W)
    row, col = ((share * (2 * padding + 1)).astype(np.int64) for share in (draws.top, draws.left))
    return torch.from_numpy(windows[np.arange(len(images)), :, row, col])


def _boxes(height: int, width: int, draws: Draws) -> Tensor:
    """A random box per image, bool (B, H, W), by the `erase_…` draws (B,).

    Its area is 2 % to 33 % of the image and its aspect 0.3 to 3.3, uniform in the logarithm, as in
    Zhong et al. 2017; a side longer than the image is cut to it.
    """
    area = (0.02 + draws.erase_area * (1 / 3 - 0.02)) * height * width
    aspect = np.exp(np.log(0.3) + draws.erase_aspect * np.log(3.3 / 0.3))

    def inside(side: np.ndarray, full: int, place: np.ndarray) -> np.ndarray:
        length = np.clip(np.round(side), 1, full)
        start = np.floor(place * (full - length + 1))
        position = np.arange(full)
        return (position >= start[:, None]) & (position < (start + length)[:, None])  # (B, full)

    rows = inside(np.sqrt(area * aspect), height, draws.erase_top)
    cols = inside(np.sqrt(area / aspect), width, draws.erase_left)
    return torch.from_numpy(rows[:, :, None] & cols[:, None, :])
