"""Classes by name: which of a dataset's are used, and the label of each."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from vitrail.data.images import Images, Splits
from vitrail.errors import UserError


def read_names(classes: str | Path | Sequence[str] | None) -> tuple[str, ...] | None:
    """Class names as given, or from a file with one a line; None stays None.

    Raises `UserError` for a missing file, a name given twice, or no names.
    """
    if classes is None:
        return None
    if isinstance(classes, str | Path):
        path = Path(classes).expanduser()
        if not path.is_file():
            raise UserError(
                f"data.classes={classes} does not exist; give a file of names, or [a,b]"
            )
        names = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    else:
        names = [str(name) for name in classes]  # YAML reads the name of a folder 0 as a number
    if not names:
        raise UserError(f"data.classes must name at least one class, got {classes}")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"data.classes names {some(twice)} twice; give each class once")
    return tuple(names)


def renumber(
    splits: Splits, wanted: tuple[str, ...] | None, known: tuple[str, ...] | None, *, place: str
) -> Splits:
    """Number a dataset's classes anew and drop the images of unused ones.

    Args:
        splits: as the dataset has them.
        wanted: restricts the classes and orders them; None uses all. Raises `UserError` for one
            that the dataset lacks.
        known: the classes of a model, which decide the labels; the dataset may have fewer. Raises
            `UserError` for one that the model lacks.
        place: of the dataset, for messages.
    """
    present = splits.classes
    order = known or wanted or present
    used = set(present) & set(wanted or present)
    if known is None and (missing := sorted(set(order) - used)):
        raise UserError(
            f"data.classes names {some(missing)}, not among the {len(present)} classes of "
            f"{place}: {some(present)}"
        )
    if unknown := sorted(used - set(order)):
        raise UserError(
            f"{place} has {some(unknown)}, not among the {len(order)} classes of the model: "
            f"{some(order)}; leave them out with data.classes=[…]"
        )
    number = {name: label for label, name in enumerate(order) if name in used}
    numbers = torch.tensor([number.get(name, -1) for name in present])
    images = {}
    for split, part in splits.images.items():
        labels = numbers[part.labels]
        kept = (labels >= 0).nonzero().flatten()
        images[split] = Images(part[kept].source, labels[kept])
    return Splits(order, images)


def some(names: Iterable[str], at_most: int = 10) -> str:
    """The first names, joined, and how many more there are."""
    names = list(names)
    more = len(names) - at_most
    return ", ".join(names[:at_most]) + (f" and {more} more" if more > 0 else "")
