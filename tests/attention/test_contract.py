"""Every backend of the folder's listing, against attention written out in float64."""

import pytest
import torch

from vitrail.attention import Grid, attend, backends
from vitrail.attention.backends import Refused, Request

from .cases import BATCH, HEADS, KINDS, ON_CPU, PREFIXES, WIDTH, mask_and_bias
from .oracle import assert_near, attention, dead_rows

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SHORT = (Grid(1, 1), Grid(1, 1, 1), Grid(3, 5), Grid(3, 5, 5), Grid(8, 8), Grid(5, 13))
LONG = (Grid(12, 16), Grid(12, 16, 5))
PRODUCT = ((1, 1), (3, 5), (8, 8), (14, 9))


def check(backend: str, kind_name: str, grid: Grid, dtype: torch.dtype) -> None:
    """Outputs and gradients equal float64's, or the call is refused as the backend had said."""
    torch.manual_seed(0)
    kind = KINDS[kind_name]
    mask, bias = mask_and_bias(kind, grid, dtype)
    # Heads are a view of (B, N, h, d), as in the module: no kernel may count on packed strides.
    leaves = [
        torch.randn(BATCH, grid.tokens, HEADS, WIDTH).to(dtype).requires_grad_() for _ in range(3)
    ]
    if kind.learned:
        leaves.append(bias.requires_grad_())
    q, k, v = (leaf.transpose(1, 2) for leaf in leaves[:3])

    if backends.load(backend).refuse(Request.of(q, k, v, mask, bias, 0.0)):
        with pytest.raises(Refused, match=f"backend={backend} cannot .+; .+ can"):
            attend(q, k, v, mask=mask, bias=bias, backend=backend)
        return

    doubles = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = attention(
        *(double.transpose(1, 2) for double in doubles[:3]),
        visible=mask.visible(q.device),
        bias=doubles[3] if kind.learned else bias,
    )
    towards = torch.randn(expected.shape).to(dtype)
    wanted = torch.autograd.grad(expected, doubles, towards.double())

    out = attend(q, k, v, mask=mask, bias=bias, backend=backend)
    grads = torch.autograd.grad(out, leaves, towards)

    assert out.dtype == dtype
    assert out.shape == (BATCH, HEADS, grid.tokens, WIDTH)
    assert_near("output", out, expected)
    for name, actual, want in zip(("dq", "dk", "dv", "dbias"), grads, wanted, strict=False):
        assert actual.dtype == dtype
        assert_near(name, actual, want)

    dead = dead_rows(mask.visible(q.device), bias, (BATCH, HEADS, grid.tokens, grid.tokens))
    assert dead.any() == (kind.mask is not None or kind.cut or (kind.padded and not grid.prefix))
    assert (out[dead] == 0).all()
    assert (grads[0].transpose(1, 2)[dead] == 0).all()
    if kind.learned:
        assert (grads[3][bias == float("-inf")] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", backends.names())
def test_a_backend_equals_float64_in_every_dtype_under_every_mask(backend, kind, dtype):
    check(backend, kind, Grid(3, 5, 1), dtype)


@pytest.mark.parametrize("grid", SHORT, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ON_CPU)
def test_a_backend_equals_float64_at_short_and_awkward_lengths(backend, kind, grid):
    check(backend, kind, grid, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("grid", LONG, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ON_CPU)
def test_a_backend_equals_float64_at_192_and_197_tokens(backend, kind, grid, dtype):
    check(backend, kind, grid, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("shape", PRODUCT, ids=str)
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ON_CPU)
def test_a_backend_equals_float64_over_the_whole_product(backend, kind, dtype, shape, prefix):
    check(backend, kind, Grid(*shape, prefix), dtype)
