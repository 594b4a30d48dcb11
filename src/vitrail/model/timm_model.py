"""Any timm model in vitrail's harness, as a baseline that keeps timm's own attention."""

from difflib import get_close_matches

import timm
from torch import nn

from vitrail.errors import UserError
from vitrail.model.stems import pair, patch_grid


def create(
    *,
    name: str,
    image_size: int | tuple[int, int],
    num_classes: int,
    pretrained: bool,
    drop_path: float,
    patch_size: int | None,
) -> nn.Module:
    """`timm.create_model(name)` for images of `image_size` pixels and `num_classes`.

    patch_size: of a transformer, in place of the one in its name; None keeps that.
    """
    if not timm.is_model(name):
        near = get_close_matches(name, timm.list_models(), n=3, cutoff=0.5)
        hint = f"; near it are {', '.join(near)}" if near else ""
        raise UserError(f"model.name={name} is not a timm model{hint} (see timm.list_models())")
    arch, _, tag = name.partition(".")
    if tag and name not in (tagged := timm.list_models(f"{arch}.*", include_tags=True)):
        raise UserError(
            f"model.name={name}: {arch} has no weights {tag}; there are {', '.join(tagged)}"
        )
    options = {"num_classes": num_classes, "pretrained": pretrained}
    if drop_path:
        options["drop_path_rate"] = drop_path  # not every model knows it
    if patch_size is not None:
        options["patch_size"] = patch_size
    try:
        model = _build(name, image_size, options)
    except (OSError, RuntimeError) as error:
        if not pretrained:
            raise
        raise UserError(
            f"model.name={name}: its weights could not be downloaded ({type(error).__name__}); "
            "use model.pretrained=false, or run where the network is"
        ) from error
    patch_size = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    if patch_size is not None:
        patch_grid(pair(image_size), pair(patch_size))  # timm would leave out what fills no patch
    return model


def _build(name: str, image_size: int | tuple[int, int], options: dict) -> nn.Module:
    try:
        return timm.create_model(name, **options, img_size=image_size)
    except TypeError as error:
        if "drop_path_rate" in str(error):
            message = f"model.name={name} has no paths to drop; use model.drop_path=0"
            raise UserError(message) from error
        if "patch_size" in str(error):
            message = f"model.name={name} has no patches; use model.patch_size=null"
            raise UserError(message) from error
        # Convolutional models take images of any size and know no img_size.
        if "img_size" not in str(error):
            raise
    return timm.create_model(name, **options)
