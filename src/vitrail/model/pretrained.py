"""Begin from weights that exist: a timm model or a file, head and grid adapted and said so."""

import logging
from functools import partial
from math import isqrt
from pathlib import Path
from pickle import UnpicklingError

import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from vitrail.attention.grid import Grid
from vitrail.attention.positions.learned import resample_table
from vitrail.errors import UserError

log = logging.getLogger(__name__)

# torch takes whatever a file holds for pickle's opcodes: any of these may come of it.
UNREADABLE = UnpicklingError, RuntimeError, ValueError, LookupError, EOFError, OSError


def load_pretrained(model: nn.Module, source: str) -> None:
    """Load `source` into a ViT: a timm name, or the path of a state dict or vitrail checkpoint.

    The head stays fresh when the number of classes differs, and a position table of another grid is
    resampled; both are logged in one line. Raises UserError for any other difference, listing it.
    """
    weights, old_grid = _read(source, model)
    adapted = []
    head = weights.get("head.weight", torch.empty(0))
    if head.shape != model.head.weight.shape:
        adapted.append(f"fresh head ({len(head)} -> {model.head.out_features} classes)")
        weights = weights | {f"head.{k}": v for k, v in model.head.state_dict().items()}
    if model.pos_embed is not None and "pos_embed" in weights:
        old, new = old_grid, model.position.grid
        old = Grid(old.rows, old.cols, weights["pos_embed"].shape[1] - old.area)
        weights["pos_embed"] = resample_table(weights["pos_embed"], old, new)
        before, now = f"{old.rows}x{old.cols}", f"{new.rows}x{new.cols}"
        if before != now:
            adapted.append(f"positions resampled ({before} -> {now})")
    _check_fit(model, weights, source)
    model.load_state_dict(weights, strict=True)
    log.info("pretrained weights: %s", ", ".join([source, *adapted]))


def _read(source: str, model: nn.Module) -> tuple[dict[str, Tensor], Grid]:
    """The weights and the grid that they were trained on."""
    path = Path(source).expanduser()
    if path.is_file():
        weights = _read_file(path)
        return weights, _grid_of(weights, model, source)
    if not timm.is_model(source):
        raise UserError(
            f"pretrained={source} is neither a file nor a timm model; "
            "use a path that exists or a name of timm.list_models('vit*')"
        )
    try:
        teacher = timm.create_model(source, pretrained=True)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"pretrained={source} could not be downloaded ({type(error).__name__}); "
            "download its weights elsewhere and give the file as model.pretrained=PATH"
        ) from error
    if not isinstance(teacher, timm.models.VisionTransformer):
        raise UserError(
            f"pretrained={source} is not a VisionTransformer; see timm.list_models('vit*')"
        )
    return teacher.state_dict(), Grid(*teacher.patch_embed.grid_size)


def _read_file(path: Path) -> dict[str, Tensor]:
    """The state dict in a file: by itself, or as a training run of vitrail wrote it."""
    torch_file = partial(torch.load, map_location="cpu", weights_only=True)
    try:
        content = (load_file if path.suffix == ".safetensors" else torch_file)(path)
    except (SafetensorError, *UNREADABLE) as error:
        raise UserError(
            f"pretrained={path} cannot be read as weights ({type(error).__name__}); "
            "use a state dict written by torch.save, or a .safetensors file"
        ) from error
    if isinstance(content, dict):
        content = content.get("state_dict", content)
    if not isinstance(content, dict) or not all(isinstance(v, Tensor) for v in content.values()):
        raise UserError(f"pretrained={path} holds no state dict; use a ViT's weights by name")
    weights = {name.removeprefix("network."): value for name, value in content.items()}
    if (key := "patch_embed.proj.weight") not in weights:
        raise UserError(f"pretrained={path} has no {key}; use the weights of a timm ViT")
    return weights


def _grid_of(weights: dict[str, Tensor], model: nn.Module, source: str) -> Grid:
    # A file does not say its grid: the model's own when the rows fit, otherwise a square.
    if model.pos_embed is None or "pos_embed" not in weights:
        return model.grid
    own = model.position.grid
    area = weights["pos_embed"].shape[1] - own.prefix
    if area == own.area:
        return Grid(own.rows, own.cols)
    side = isqrt(max(area, 0))
    if side == 0 or side * side != area:
        raise UserError(
            f"pretrained={source} has {area + own.prefix} position rows, which are not "
            f"{own.prefix} for prefix tokens and a square map; "
            "build the model for the grid and the tokens of the weights"
        )
    return Grid(side, side)


def _check_fit(model: nn.Module, weights: dict[str, Tensor], source: str) -> None:
    own = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    misfits = [f"{name} is missing" for name in sorted(own.keys() - found.keys())]
    misfits += [f"{name} is unknown" for name in sorted(found.keys() - own.keys())]
    for name in sorted(own.keys() & found.keys()):
        if found[name] != own[name]:
            misfits.append(f"{name} has shape {found[name]}, not {own[name]}")
    if misfits:
        more = f" and {len(misfits) - 3} more" if len(misfits) > 3 else ""
        raise UserError(
            f"pretrained={source} does not fit this model: {'; '.join(misfits[:3])}{more}; "
            "choose the model size, patch size and tokens that the weights were trained with"
        )
