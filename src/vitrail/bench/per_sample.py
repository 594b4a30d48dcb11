"""torchvision's usual pipeline, an image at a time, on the images that vitrail's loader serves."""

from collections.abc import Callable, Sequence

import torch
from PIL import Image
from torch import Tensor
from torchvision import transforms
from torchvision.datasets.folder import default_loader

from vitrail.data.augment import Augment
from vitrail.data.images import Images

POLICIES = {"randaugment": transforms.RandAugment, "trivial": transforms.TrivialAugmentWide}


class PerSample(torch.utils.data.Dataset):
    """A picture, transformed, and its label, as torchvision's CIFAR10 and ImageFolder make them.

    Pixels in memory become a picture whenever they are asked for; files are opened and decoded.
    """

    def __init__(self, images: Images, transform: Callable[[Image.Image], Tensor]):
        self.transform = transform
        self.labels = images.labels.tolist()
        if images.in_memory:
            self.sources = images.source.permute(0, 2, 3, 1).contiguous().numpy()  # (n, H, W, 3)
            self.open = Image.fromarray
        else:
            self.sources = [images.path(index) for index in range(len(images))]
            self.open = default_loader

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """float32 (3, H, W) and the label."""
        return self.transform(self.open(self.sources[index])), self.labels[index]


def usual(
    augment: Augment,
    *,
    size: tuple[int, int],
    sized: bool,
    mean: Sequence[float],
    std: Sequence[float],
) -> Callable[[Image.Image], Tensor]:
    """torchvision's transform that does what `augment` does, for images (H, W) of `size`.

    sized: whether they have that size already. These are the first transforms, not v2: on small
    pictures they are the faster ones.
    """
    if augment.scale is not None:
        steps = [transforms.RandomResizedCrop(size, scale=augment.scale)]
    elif sized:
        steps = []
    elif size[0] == size[1]:
        steps = [transforms.Resize(size[0]), transforms.CenterCrop(size)]
    else:
        steps = [transforms.Resize(size)]
    if augment.auto is not None:
        steps.append(POLICIES[augment.auto]())
    if augment.crop_padding:
        padding = {"padding": augment.crop_padding, "padding_mode": augment.padding_mode}
        steps.append(transforms.RandomCrop(size, **padding))
    if augment.flip:
        steps.append(transforms.RandomHorizontalFlip())
    steps += [transforms.ToTensor(), transforms.Normalize(mean, std)]
    if augment.erase:
        steps.append(transforms.RandomErasing(augment.erase))
    return transforms.Compose(steps)
