"""From tokens to one vector: the class token, the mean of real tokens, or a learned query."""

import pytest
import torch

from vitrail.attention import Grid, Mask
from vitrail.attention.mask import valid_tokens
from vitrail.model import ViT
from vitrail.model.pool import AttentionPool, AveragePool, TokenPool

from .small import ON_CPU, SIZES

GRID = Grid(2, 3, 2)


def masked(valid: torch.Tensor) -> Mask:
    return Mask(valid=valid_tokens(valid, GRID, len(valid)))


def test_the_class_token_is_needed_to_be_read():
    message = "^pool=token .* class_token=false; use pool=avg or pool=map$"
    with pytest.raises(ValueError, match=message):
        ViT(**SIZES, class_token=False)


@pytest.mark.parametrize(
    "key, value, choices",
    [
        ("pool", "max", "token or avg or map"),
        ("stem", "cnn", "patch or conv or pool"),
        ("mlp", "glu", "swiglu"),
    ],
)
def test_a_part_that_does_not_exist_is_refused_with_those_that_do(key, value, choices):
    with pytest.raises(ValueError, match=f"^{key}={value} does not exist; use .*{choices}"):
        ViT(**(SIZES | {key: value}))


def test_token_pool_reads_the_first_token():
    x = torch.randn(2, GRID.tokens, 4)
    assert torch.equal(TokenPool()(x, GRID, Mask()), x[:, 0])


def test_average_pool_leaves_prefix_and_padding_out_and_of_nothing_is_zero():
    x = torch.randn(2, GRID.tokens, 4)
    valid = torch.tensor([[[True, True, False], [False, False, False]], [[True] * 3] * 2])
    out = AveragePool()(x, GRID, masked(valid))
    torch.testing.assert_close(out[0], x[0, 2:4].mean(0))
    torch.testing.assert_close(out[1], x[1, 2:].mean(0))
    torch.testing.assert_close(AveragePool()(x, GRID, Mask()), x[:, 2:].mean(1))
    nothing = masked(torch.zeros(2, 2, 3, dtype=torch.bool))
    assert (AveragePool()(x * float("nan"), GRID, nothing) == 0).all()


@pytest.mark.parametrize("backend", ON_CPU)
def test_attention_pool_looks_at_the_real_tokens_on_the_map_alone(backend):
    torch.manual_seed(0)
    pool = AttentionPool(8, 2, mlp_ratio=2.0, backend=backend)
    x = torch.randn(2, GRID.tokens, 8)
    valid = torch.zeros(2, 2, 3, dtype=torch.bool)
    valid[:, 0] = True
    out = pool(x, GRID, masked(valid))
    torch.testing.assert_close(out, pool(x[:, 2:5], Grid(1, 3), Mask()), atol=1e-6, rtol=0)
    other = x.clone()
    other[:, :2] = other[:, 5:] = 50.0
    assert torch.equal(pool(other, GRID, masked(valid)), out)
    other[:, 3] += 1.0
    assert not torch.equal(pool(other, GRID, masked(valid)), out)


def test_attention_pool_knows_its_backend_when_it_is_built():
    with pytest.raises(ValueError, match=r"backend=sdpq does not exist; did you mean sdpa\?"):
        AttentionPool(8, 2, mlp_ratio=2.0, backend="sdpq")
