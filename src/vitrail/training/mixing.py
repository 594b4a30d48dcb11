"""Mixed images with soft labels: mixup (Zhang et al. 2018) and cutmix (Yun et al. 2019)."""

from torch import Tensor
from torchvision.transforms import v2

from vitrail.errors import UserError


class Mixing:
    """Blends every image of a batch with its neighbour, and the labels likewise.

    Args:
        mixup: alpha of the Beta distribution that lambda is drawn from; None or 0 for none.
        cutmix: likewise; with both, each batch takes one of them.
        classes: number of classes.
    """

    def __init__(self, *, mixup: float | None, cutmix: float | None, classes: int):
        for name, alpha in (("mixup", mixup), ("cutmix", cutmix)):
            if alpha is not None and alpha < 0:
                raise UserError(f"classifier.{name} must be >= 0, got {alpha}")
        ways = ((v2.MixUp, mixup), (v2.CutMix, cutmix))
        self.ways = [way(alpha=alpha, num_classes=classes) for way, alpha in ways if alpha]
        self._mix = v2.RandomChoice(self.ways) if self.ways else v2.Identity()

    def __call__(
        self, images: Tensor, labels: Tensor, valid: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """images (B, 3, H, W) and labels (B,) -> images and targets (B, classes), or (B,) unmixed.

        A batch of one has no neighbour and stays as it is. Padded batches are refused, because the
        share of a picture that is seen would differ from the share that its label gets.
        """
        if not self.ways or len(images) == 1:
            return images, labels
        if valid is not None:
            raise UserError(
                "mixup and cutmix need images of one size and this batch is padded; "
                "use classifier.mixup=0 classifier.cutmix=0, or data.resize=crop"
            )
        return self._mix(images, labels)
