"""Which classes are taken for which: the confusion matrix as a picture and as a table.

Everywhere `confusion[i, j]` counts the images of class i that were predicted as class j, which is
torchmetrics' order.
"""

import warnings
from collections.abc import Sequence
from math import ceil
from pathlib import Path

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from vitrail.tracking.atomic import replacing

POINTS = 72  # typographic points an inch
NAME = 0.11  # inches that the smallest legible line of text needs
SIDE = 22  # inches of the largest matrix


def per_class(confusion: Tensor, classes: Sequence[str]) -> pd.DataFrame:
    """One row a class: images, correct ones, accuracy, and the class it is most often taken for.

    The last two are missing where there is nothing to tell. confusion is (C, C), of whole numbers.
    """
    correct = confusion.diagonal()
    mistakes = pd.DataFrame((confusion - correct.diag()).numpy(), columns=list(classes))
    table = pd.DataFrame({"class": list(classes), "count": confusion.sum(dim=1).numpy()})
    table["correct"] = correct.numpy()
    table["accuracy"] = table["correct"] / table["count"].where(table["count"] > 0)
    table["most_confused_with"] = mistakes.idxmax(axis=1).where(mistakes.max(axis=1) > 0)
    return table


def draw(path: Path, confusion: Tensor, classes: Sequence[str], *, title: str) -> None:
    """Draw the matrix (C, C) as a PNG: shares of the true class as colour, counts where they fit.

    With more classes cells shrink and the picture grows, up to 200; beyond, names are left out.
    torchmetrics' own plot uses pyplot, which belongs to the whole process.
    """
    number = len(classes)
    side = min(max(2.5, min(0.5 * number, 12), NAME * number), SIDE)
    cell = side / number
    # Axes take three quarters of a figure; labels may hang over its edge, since it is saved tight.
    figure = Figure(figsize=(side * 1.3, side * 1.3), dpi=100)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    share = confusion / confusion.sum(dim=1, keepdim=True).clamp(min=1)
    shade = PowerNorm(0.5, vmin=0, vmax=1)  # or a rare mistake would be as white as none
    image = axes.imshow(share.tolist(), cmap="Blues", norm=shade)
    figure.colorbar(image, ax=axes, fraction=0.04, label="share of the true class")
    labels = [name if len(name) <= 24 else name[:23] + "…" for name in classes]
    plain = {"fontsize": min(10, max(cell, NAME) * POINTS * 0.75), "parse_math": False}
    named = range(0, number, ceil(NAME * number / SIDE))
    axes.set_xticks(named, [labels[i] for i in named], rotation=90, **plain)
    axes.set_yticks(named, [labels[i] for i in named], **plain)
    axes.set(xlabel="predicted class", ylabel="true class", title=title)
    digits = len(str(int(confusion.max())))
    if (size := min(10, cell * POINTS * 1.3 / (digits + 1))) >= 5:
        for true, predicted in confusion.nonzero().tolist():
            colour = "white" if shade(share[true, predicted].item()) > 0.6 else "black"
            count = str(int(confusion[true, predicted]))
            axes.text(predicted, true, count, color=colour, size=size, ha="center", va="center")
    with replacing(path) as draft, warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        figure.savefig(draft, bbox_inches="tight")
