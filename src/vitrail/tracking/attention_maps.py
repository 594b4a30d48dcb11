"""Where a model looks, drawn over the images: a map for each layer, and one through them all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib import colormaps
from PIL import Image, ImageDraw
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from torch import Tensor

from vitrail.attention.maps import attention_maps, rollout
from vitrail.errors import UserError
from vitrail.model import ViT
from vitrail.model.stems import patch_grid
from vitrail.model.vit import valid_patches
from vitrail.tracking.atomic import replacing
from vitrail.tracking.loggers import Loggers

MAX_LAYERS = 12  # in one picture; of deeper models, so many at even steps
CELL, GAP, HEADER = 120, 6, 48  # pixels


@dataclass(frozen=True)
class ImageMaps:
    """One image and where a model looks in it, without padding."""

    image: Tensor  # (H, W, 3) in [0, 1]
    maps: Mapping[str, Tensor]  # (H, W) each, from 0 on, by the name of their layer


def on_image(
    model: ViT,
    maps: Mapping[str, Tensor],
    image: Tensor,
    valid: Tensor | None,
    *,
    mean: Sequence[float],
    std: Sequence[float],
) -> ImageMaps:
    """Lay the maps of one image on it.

    What is shown is the mean over heads of what the class token looks at, or, in a model without
    one, of what all real tokens do; `rollout` follows that through all the layers. A pooling
    query's map is its own.

    Args:
        model: whose maps they are.
        maps: as `attention_maps` gives them for a batch of this image alone.
        image: (3, H, W), normalised by mean and std.
        valid: (H, W), its real pixels; None where all are.
        mean, std: a number a channel.
    """
    height, width = image.shape[-2:]
    patch = model.patch_embed.patch_size
    grid = patch_grid((height, width), patch, model.grid.prefix)
    if valid is None:
        valid = torch.ones(height, width, dtype=torch.bool)
    valid = valid.cpu()[None]
    queries = torch.zeros(grid.tokens)  # by what share each token is asked where it looks
    if model.cls_token is not None:
        queries[0] = 1.0
    else:
        patches = valid_patches(valid, patch).flatten()
        queries[grid.prefix :] = patches / patches.sum().clamp(min=1)

    weights = {name.removesuffix(".attn"): of[0].float().cpu() for name, of in maps.items()}
    steps = torch.linspace(0, len(weights) - 1, min(MAX_LAYERS, len(weights))).round().long()
    names = [list(weights)[step] for step in steps]
    shown = {name: weights[name].mean(0) for name in names}
    through = rollout(of[None] for of in weights.values() if of.shape[-2] == grid.tokens)
    shown["rollout"] = through[0]

    # Padding lies below and to the right.
    tall, wide = int(valid.any(2).sum()), int(valid.any(1).sum())

    def enlarged(of: Tensor) -> Tensor:
        """(N, N) weights, or (1, area) of a pooling query -> (H, W)."""
        row = of[0] if len(of) == 1 else queries @ of
        small = row[-grid.area :].unflatten(0, (grid.rows, grid.cols))
        small = small[: -(-tall // patch[0]), : -(-wide // patch[1])]  # before padding blurs in
        size = small.shape[0] * patch[0], small.shape[1] * patch[1]
        return F.interpolate(small[None, None], size=size, mode="bilinear")[0, 0, :tall, :wide]

    pixels = image.float().cpu() * torch.tensor(std)[:, None, None]
    pixels = (pixels + torch.tensor(mean)[:, None, None]).clamp(0, 1).permute(1, 2, 0)
    return ImageMaps(pixels[:tall, :wide], {name: enlarged(of) for name, of in shown.items()})


def draw(path: Path, rows: Sequence[ImageMaps], *, title: str) -> None:
    """Draw a row an image as a PNG: the image, then it in grey under each of its maps.

    A map's brightest place is its own largest weight, so maps do not compare with each other.
    """
    columns = ["image", *rows[0].maps]
    canvas = Image.new("RGB", (len(columns) * CELL, HEADER + len(rows) * CELL), "white")
    text = ImageDraw.Draw(canvas)
    text.text((4, 2), title, "black", font_size=14)
    for column, name in enumerate(columns):
        text.text((column * CELL, HEADER - 18), name, "black", font_size=12)
    for row, one in enumerate(rows):
        height, width = one.image.shape[:2]
        share = (CELL - GAP) / max(height, width)
        size = max(1, round(width * share)), max(1, round(height * share))
        image = Image.fromarray((one.image * 255).round().byte().numpy()).resize(size)
        grey = image.convert("L").convert("RGB")
        cells = [image]
        for of in one.maps.values():
            of = of / of.max().clamp(min=torch.finfo(of.dtype).tiny)
            heat = Image.fromarray(colormaps["inferno"](of.numpy(), bytes=True)[..., :3])
            cells.append(Image.blend(grey, heat.resize(size), 0.7))
        for column, cell in enumerate(cells):
            canvas.paste(cell, (column * CELL, HEADER + row * CELL))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        canvas.save(draft)


@dataclass(kw_only=True, eq=False)
class AttentionMaps(Callback):
    """Draws where `network` looks in the first images that a process validates or tests.

    Images are taken from the batches that pass by, with the weights that are evaluated: nothing
    is loaded or drawn at random for it, and training goes on as without. Raises UserError for a
    number below 1 and, in `setup`, for a model or a strategy whose maps cannot be had.
    """

    images: int
    every_n_epochs: int  # after these epochs' validations; a test is always drawn
    folder: Path  # the run's, for attention/epoch_0010.png and attention/<tested>.png
    tested: str  # the split that a test reads
    mean: Sequence[float]  # of the images, a number a channel
    std: Sequence[float]
    loggers: Loggers  # show the pictures
    _taken: list[ImageMaps] = field(default_factory=list, init=False)

    def __post_init__(self):
        for name, value in (("images", self.images), ("every_n_epochs", self.every_n_epochs)):
            if not isinstance(value, int) or value < 1:
                raise UserError(f"attention maps: {name} must be a whole number >= 1, got {value}")

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(pl_module.network, ViT):
            raise UserError(
                "attention maps are drawn of vit models and this is "
                f"{type(pl_module.network).__name__}; leave them out: attention_maps.images=null "
                "in training, maps=null in evaluation"
            )
        if isinstance(trainer.strategy, (FSDPStrategy, ModelParallelStrategy, DeepSpeedStrategy)):
            raise UserError(
                f"attention maps need whole weights and {type(trainer.strategy).__name__} keeps a "
                "shard in each process; use trainer=ddp or attention_maps.images=null"
            )

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, _: Any, batch: Any, index: int, *at: int
    ) -> None:
        epoch = trainer.current_epoch + 1
        if not trainer.sanity_checking and epoch % self.every_n_epochs == 0:
            left = trainer.num_val_batches[0] - index - 1
            self._take(trainer, pl_module.network, batch, index, left, "val", f"epoch_{epoch:04}")

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, _: Any, batch: Any, index: int, *at: int
    ) -> None:
        left = trainer.num_test_batches[0] - index - 1
        self._take(trainer, pl_module.network, batch, index, left, self.tested, self.tested)

    def _take(
        self, trainer: Trainer, network: ViT, batch: Any, index: int, left: int, split: str, to: str
    ) -> None:
        """Keep the maps of what is still wanted of a batch; with the last of it, draw and show."""
        if index == 0:
            self._taken = []
        wanted = self.images - len(self._taken)
        if not trainer.is_global_zero or wanted == 0:
            return
        images, _, valids = batch
        for one, image in enumerate(images[:wanted]):  # one by one: maps are large
            valid = None if valids is None else valids[one]
            with trainer.precision_plugin.forward_context():
                maps = attention_maps(network, image[None], None if valid is None else valid[None])
            shown = on_image(network, maps, image, valid, mean=self.mean, std=self.std)
            self._taken.append(shown)
        if left == 0 or len(self._taken) == self.images:
            path = self.folder / "attention" / f"{to}.png"
            title = f"{split}, {to.replace('_', ' ')}" if to != split else split
            draw(path, self._taken, title=title)
            self.loggers.show_picture(f"{split}/attention", path)
