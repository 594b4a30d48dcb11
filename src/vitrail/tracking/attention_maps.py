"""Where a model looks, drawn over the images: a map for each layer, and one through them all."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from torch import Tensor

from vitrail.attention import Grid
from vitrail.attention.maps import attention_maps, rollout
from vitrail.errors import UserError
from vitrail.model import ViT
from vitrail.model.stems import patch_grid
from vitrail.model.vit import valid_patches
from vitrail.tracking.atomic import replacing
from vitrail.tracking.loggers import Loggers

MOST = 12  # layers in one picture; of deeper models, so many at even steps
CELL, GAP, HEADER, DPI = 120, 6, 48, 100  # pixels; and how many of them an inch of text has


@dataclass(frozen=True)
class Look:
    """One image and where a model looks in it.

    image: (H, W, 3) in [0, 1]. maps: (H, W) each, from 0 on, by the name of their layer. Padding is
    cut off.
    """

    image: Tensor
    maps: Mapping[str, Tensor]


def look(
    model: ViT,
    maps: Mapping[str, Tensor],
    image: Tensor,
    padding: Tensor | None,
    *,
    mean: Sequence[float],
    std: Sequence[float],
) -> Look:
    """Lay the maps of one image on it, (3, H, W) as it was normalised, padding (H, W) or None.

    maps: as `attention_maps` gives them for a batch of this image alone. What is shown is the mean
    over heads of what the class token looks at, or, in a model without one, of what all real tokens
    do; `rollout` follows that through all the layers. A pooling query's map is its own.
    """
    height, width = image.shape[-2:]
    patch = model.patch_embed.patch_size
    grid = patch_grid((height, width), patch, model.grid.prefix)
    whole = torch.ones(height, width, dtype=torch.bool)
    real = whole[None] if padding is None else padding.cpu()[None]
    asks = _asking(grid, valid_patches(real, patch), class_token=model.cls_token is not None)

    weights = {name.removesuffix(".attn"): of[0].float().cpu() for name, of in maps.items()}
    shown = {name: weights[name].mean(0) for name in _evenly(list(weights))}
    through = rollout(of[None] for of in weights.values() if of.shape[-2] == grid.tokens)
    shown["rollout"] = through[0]

    # Padding lies below and to the right.
    tall, wide = int(real.any(2).sum()), int(real.any(1).sum())

    def on_image(of: Tensor) -> Tensor:
        """(N, N) weights, or (1, area) of a pooling query -> (H, W)."""
        row = of[0] if len(of) == 1 else asks @ of
        small = row[-grid.area :].unflatten(0, (grid.rows, grid.cols))
        small = small[: -(-tall // patch[0]), : -(-wide // patch[1])]  # before padding blurs in
        size = small.shape[0] * patch[0], small.shape[1] * patch[1]
        return F.interpolate(small[None, None], size=size, mode="bilinear")[0, 0, :tall, :wide]

    pixels = image.float().cpu() * torch.tensor(std)[:, None, None]
    pixels = (pixels + torch.tensor(mean)[:, None, None]).clamp(0, 1).permute(1, 2, 0)
    return Look(pixels[:tall, :wide], {name: on_image(of) for name, of in shown.items()})


def draw(path: Path, looks: Sequence[Look], *, title: str) -> None:
    """Draw a row an image as a PNG: the image, then it in grey under each of its maps.

    A map's brightest place is its own largest weight, so maps do not compare with each other.
    """
    # Slow to import, and only drawing needs it. No pyplot, whose figures belong to the process; no
    # axes, a hundred of which take seconds.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = ["image", *looks[0].maps]
    canvas = torch.ones(len(looks) * CELL, len(columns) * CELL, 3)
    for row, one in enumerate(looks):
        for column, cell in enumerate(_cells(one)):
            place = canvas[row * CELL :, column * CELL :]
            place[: cell.shape[0], : cell.shape[1]] = cell
    high, wide = canvas.shape[0] + HEADER, canvas.shape[1]
    figure = Figure(figsize=(wide / DPI, high / DPI), dpi=DPI)
    FigureCanvasAgg(figure)
    figure.figimage(canvas.numpy(), origin="upper")
    figure.text(0, 1, title, fontsize=10, va="top", parse_math=False)
    for column, name in enumerate(columns):
        place = column * CELL / wide, canvas.shape[0] / high
        figure.text(*place, name, fontsize=8, va="bottom", parse_math=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        figure.savefig(draft)


class AttentionMaps(Callback):
    """Draws where `network` looks in the first images that a process validates or tests.

    images: how many. every_n_epochs: after which epochs' validations; a test is always drawn.
    folder: the run's; pictures are `attention/epoch_0010.png` and `attention/<tested>.png` in it.
    tested: the split that a test reads. mean, std: what the images were normalised by. Images are
    taken from the batches that pass by, with the weights that are being judged: nothing is loaded
    or drawn at random for it, and training goes on as without.
    """

    def __init__(
        self,
        *,
        images: int,
        every_n_epochs: int,
        folder: Path,
        tested: str,
        mean: Sequence[float],
        std: Sequence[float],
        loggers: Loggers,
    ):
        for name, value in {"images": images, "every_n_epochs": every_n_epochs}.items():
            if not isinstance(value, int) or value < 1:
                raise UserError(
                    f"attention maps cannot be drawn with {name}={value}; use a whole number from "
                    "1 on, or null for no maps"
                )
        self.images, self.every_n_epochs = images, every_n_epochs
        self.folder, self.tested, self.loggers = folder / "attention", tested, loggers
        self.mean, self.std = mean, std
        self._looks: list[Look] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        check(pl_module.network, trainer)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._looks = []

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._looks = []

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        epoch = trainer.current_epoch + 1
        if not trainer.sanity_checking and epoch % self.every_n_epochs == 0:
            last = batch_idx + 1 == trainer.num_val_batches[dataloader_idx]
            self._take(trainer, pl_module, batch, last, "val", f"epoch_{epoch:04}")

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        last = batch_idx + 1 == trainer.num_test_batches[dataloader_idx]
        self._take(trainer, pl_module, batch, last, self.tested, self.tested)

    def _take(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: tuple[Tensor, Tensor, Tensor | None],
        last: bool,
        split: str,
        name: str,
    ) -> None:
        """Look at what is still wanted of a batch; with the last of it, draw and show."""
        wanted = self.images - len(self._looks)
        if not trainer.is_global_zero or wanted == 0:
            return
        images, _, padding = batch
        for index, image in enumerate(images[:wanted]):  # one by one: maps are large
            own = None if padding is None else padding[index]
            with trainer.precision_plugin.forward_context():
                maps = attention_maps(
                    pl_module.network, image[None], None if own is None else own[None]
                )
            one = look(pl_module.network, maps, image, own, mean=self.mean, std=self.std)
            self._looks.append(one)
        if last or len(self._looks) == self.images:
            path = self.folder / f"{name}.png"
            title = f"{split}, {name.replace('_', ' ')}" if name != split else split
            draw(path, self._looks, title=title)
            self.loggers.show_picture(f"{split}/attention", path)


def check(network: torch.nn.Module, trainer: Trainer) -> None:
    """Raise UserError for a model whose attention is not ours, and where no process has it all."""
    if not isinstance(network, ViT):
        raise UserError(
            f"attention maps are drawn of vit models and this is {type(network).__name__}; "
            "leave them out: attention_maps.images=null in training, maps=null in evaluation"
        )
    if isinstance(trainer.strategy, (FSDPStrategy, ModelParallelStrategy, DeepSpeedStrategy)):
        raise UserError(
            f"attention maps need whole weights and {type(trainer.strategy).__name__} keeps a "
            "shard in each process; use trainer=ddp or attention_maps.images=null"
        )


def _asking(grid: Grid, real: Tensor, *, class_token: bool) -> Tensor:
    """(N,), by what share each token is the one that asks; real: (1, rows, cols) bool."""
    share = torch.zeros(grid.tokens)
    if class_token:
        share[0] = 1.0
    else:
        share[grid.prefix :] = real.flatten() / real.sum().clamp(min=1)
    return share


def _cells(one: Look) -> Iterator[Tensor]:
    """The image and then each map over it, (h, w, 3) each, as large as a cell allows."""
    from matplotlib import colormaps

    longest = max(one.image.shape[:2])
    size = [max(1, round(side * (CELL - GAP) / longest)) for side in one.image.shape[:2]]
    image = F.interpolate(one.image.permute(2, 0, 1)[None], size=size)[0].permute(1, 2, 0)
    grey = image.mean(-1, keepdim=True)
    yield image
    for heat in one.maps.values():
        heat = F.interpolate(heat[None, None], size=size, mode="bilinear")[0, 0]
        share = heat / heat.max().clamp(min=torch.finfo(heat.dtype).tiny)
        colours = torch.from_numpy(colormaps["inferno"](share.numpy())[..., :3])
        yield 0.3 * grey + 0.7 * colours


def _evenly(names: list[str]) -> list[str]:
    """At most `MOST` of the names, at even steps, the first and the last among them."""
    if len(names) <= MOST:
        return names
    return [names[round(i * (len(names) - 1) / (MOST - 1))] for i in range(MOST)]
