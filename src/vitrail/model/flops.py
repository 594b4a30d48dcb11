"""How much a model computes, counted on the meta device: no weights, no time, no data."""

from copy import deepcopy

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vitrail.attention import MultiHeadAttention2d, backends
from vitrail.model.pool import AttentionPool


def forward_flops(network: nn.Module, image_size: tuple[int, int]) -> int:
    """Floating-point operations of one image's forward pass; a multiply-add counts as two.

    `network` must lie on the meta device. image_size is (height, width) in pixels.
    """
    network = deepcopy(network).eval().requires_grad_(False)
    for module in network.modules():
        if isinstance(module, MultiHeadAttention2d | AttentionPool):
            # No kernel runs on the meta device, and the formula costs the same by any of them.
            module.backend = backends.load("reference")
    images = torch.empty(1, 3, *image_size, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(images)
    return counter.get_total_flops()
