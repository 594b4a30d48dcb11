"""Begin from weights that exist: a timm model by name, or a file, with head and grid adapted and said so."""

import logging
from pathlib import Path

import timm
import torch
from torch import Tensor, nn

from vitrail.attention.grid import Grid
from vitrail.attention.positions.learned import resample_table

log = logging.getLogger(__name__)


def load_pretrained(model: nn.Module, source: str) -> None:
    """Load `source` into a ViT: a timm model's name, or the path of a state dict or of a vitrail checkpoint.

    The head stays fresh when the number of classes differs, and a position table of another grid is
    resampled; both are logged in one line. Raises ValueError for any other difference, listing it.
    """
    weights, old_grid = _read(source, model.grid)
    adapted = []
    if weights["head.weight"].shape != model.head.weight.shape:
        adapted.append(
            f"fresh head ({len(weights['head.weight'])} -> {model.head.out_features} classes)"
        )
        weights = weights | {f"head.{k}": v for k, v in model.head.state_dict().items()}
    if model.pos_embed is not None and "pos_embed" in weights:
        new_grid = model.position.grid
        old_grid = Grid(old_grid.rows, old_grid.cols, weights["pos_embed"].shape[1] - old_grid.area)
        weights["pos_embed"] = resample_table(weights["pos_embed"], old_grid, new_grid)
        if (old_grid.rows, old_grid.cols) != (new_grid.rows, new_grid.cols):
            adapted.append(
                f"positions resampled ({old_grid.rows}x{old_grid.cols} -> {new_grid.rows}x{new_grid.cols})"
            )
    _check_fit(model, weights, source)
    model.load_state_dict(weights, strict=True)
    log.info("pretrained weights: %s", ", ".join([source, *adapted]))


def _read(source: str, grid: Grid) -> tuple[dict[str, Tensor], Grid]:
    """The weights and the grid that they were trained on."""
    path = Path(source).expanduser()
    if path.is_file():
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            weights = load_file(path)
        else:
            weights = torch.load(path, map_location="cpu", weights_only=True)
        weights = weights.get("state_dict", weights)
        weights = {name.removeprefix("network."): value for name, value in weights.items()}
        if "head.weight" not in weights:
            raise ValueError(
                f"pretrained={source} holds no ViT: it has no head.weight; use a timm ViT's weights"
            )
        return weights, _square_grid(weights, grid)
    if not timm.is_model(source):
        raise ValueError(
            f"pretrained={source} is neither a file nor a timm model; "
            "use a path that exists or a name of timm.list_models('vit*')"
        )
    try:
        teacher = timm.create_model(source, pretrained=True)
    except (OSError, RuntimeError) as error:
        raise OSError(
            f"pretrained={source} could not be downloaded ({type(error).__name__}); "
            "download its weights elsewhere and give the file as model.pretrained=PATH"
        ) from error
    return teacher.state_dict(), Grid(*teacher.patch_embed.grid_size)


def _square_grid(weights: dict[str, Tensor], grid: Grid) -> Grid:
    # A file does not say its grid: the model's own when the rows fit, otherwise the largest square in them.
    rows = weights["pos_embed"].shape[1] if "pos_embed" in weights else grid.tokens
    if rows in (grid.area, grid.tokens):
        return Grid(grid.rows, grid.cols)
    side = int(rows**0.5)
    return Grid(side, side)


def _check_fit(model: nn.Module, weights: dict[str, Tensor], source: str) -> None:
    own = model.state_dict()
    misfits = [
        *(f"{name} is missing" for name in sorted(own.keys() - weights.keys())),
        *(f"{name} is unknown" for name in sorted(weights.keys() - own.keys())),
        *(
            f"{name} has shape {tuple(weights[name].shape)}, not {tuple(own[name].shape)}"
            for name in sorted(own.keys() & weights.keys())
            if weights[name].shape != own[name].shape
        ),
    ]
    if misfits:
        more = f" and {len(misfits) - 3} more" if len(misfits) > 3 else ""
        raise ValueError(
            f"pretrained={source} does not fit this model: {'; '.join(misfits[:3])}{more}; "
            "choose the model size, patch size and tokens that the weights were trained with"
        )
