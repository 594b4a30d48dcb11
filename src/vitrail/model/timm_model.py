"""Any timm model in vitrail's harness, as a baseline that keeps timm's own attention."""

import timm
from torch import nn


def create(
    *,
    name: str,
    image_size: int | tuple[int, int],
    num_classes: int,
    pretrained: bool,
    drop_path: float,
) -> nn.Module:
    """`timm.create_model(name)` for images of `image_size` pixels; near names are offered for a wrong one."""
    if not timm.is_model(name):
        near = timm.list_models(f"*{name.split('_')[0]}*")[:3]
        hint = f"; there are {', '.join(near)} …" if near else ""
        raise ValueError(f"model.name={name} is no timm model{hint} (timm.list_models() lists all)")
    options = {"num_classes": num_classes, "pretrained": pretrained, "drop_path_rate": drop_path}
    try:
        return timm.create_model(name, img_size=image_size, **options)
    except TypeError as error:
        # Convolutional models take images of any size and know no img_size.
        if "img_size" not in str(error):
            raise
        return timm.create_model(name, **options)
