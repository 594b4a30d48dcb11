"""Stratified held-out splits, the same ones in every run."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from vitrail.data.images import Images

# Not the run's seed: every seed must train and validate on the same images, and evaluation find
# them again.
_SEED = 2026


def stratified(labels: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Indices of the images to keep and to hold out: `share` of every class, rounded.

    With a share above 0, a class of two or more images has at least one on each side; a single
    image is kept. What is held out of a class depends on its own images alone.
    """
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        members = (labels == label).nonzero().flatten()
        count = round(share * len(members))
        if share > 0:
            count = min(max(count, 1), len(members) - 1)
        shuffled = np.random.default_rng(_SEED).permutation(len(members))
        held[members[shuffled[:count]]] = True
    return (~held).nonzero().flatten(), held.nonzero().flatten()


def hold_out(images: Mapping[str, Images], share: float) -> dict[str, Images]:
    """Add the splits that are missing: test out of `all`, then val out of train.

    A split without images is dropped.
    """
    images = dict(images)
    for source, missing in (("all", "test"), ("train", "val")):
        if source in images and missing not in images:
            part = images[source]
            images["train"], images[missing] = (part[i] for i in stratified(part.labels, share))
    return {split: part for split, part in images.items() if len(part)}
