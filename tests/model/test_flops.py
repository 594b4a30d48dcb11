"""What a model computes is counted without weights, the same for every backend."""

import pytest
import torch

from vitrail.attention.positions.rope import Rope
from vitrail.model.flops import forward_flops

from .small import ON_CPU, SIZES, ViT


def skeleton(**changes) -> ViT:
    with torch.device("meta"):
        return ViT(**(SIZES | changes))


@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("options", [{}, {"position": Rope()}, {"pool": "map"}], ids=str)
def test_every_backend_is_counted_alike_and_kept(backend, options):
    network = skeleton(backend=backend, **options)
    expected = forward_flops(skeleton(backend="reference", **options), (24, 32))
    assert forward_flops(network, (24, 32)) == expected > 0
    assert network.blocks[0].attn.backend.name == backend


def test_the_count_is_that_of_the_formula():
    dim, tokens, depth = 24, 13, 2
    stem = 2 * 12 * 3 * 8 * 8 * dim
    linear = 2 * tokens * dim * (3 * dim + dim + 8 * dim)
    attention = 2 * 2 * tokens * tokens * dim
    head = 2 * dim * 5
    assert forward_flops(skeleton(), (24, 32)) == stem + depth * (linear + attention) + head
