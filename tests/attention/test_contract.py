"""Every backend of the folder's listing, against attention written out in float64."""

from dataclasses import replace

import pytest
import torch

from vitrail.attention import Grid, attend, backends
from vitrail.attention.backends import Refused, Request

from .cases import BATCH, HEADS, KINDS, ON_CPU, PREFIXES, WIDTH, mask_and_bias
from .oracle import assert_same, attention, dead_rows, exact_copies

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SHORT = (Grid(1, 1), Grid(1, 1, 1), Grid(3, 5), Grid(3, 5, 5), Grid(8, 8), Grid(5, 13))
LONG = (Grid(12, 16), Grid(12, 16, 5))
PRODUCT = ((1, 1), (3, 5), (8, 8), (14, 9))


def check(
    backend: str, kind: str, grid: Grid, dtype: torch.dtype, device: str = "cpu", width: int = WIDTH
) -> None:
    """Outputs and gradients equal float64's, or the call is refused as the backend had said."""
    torch.manual_seed(0)
    kind = KINDS[kind]
    mask, bias = mask_and_bias(kind, grid, dtype)
    visible = mask.visible(torch.device("cpu"))
    dead = dead_rows(visible, bias, (BATCH, HEADS, grid.tokens, grid.tokens))
    parts = {"valid": mask.valid, "allowed": mask.allowed}
    mask = replace(
        mask, **{name: part.to(device) for name, part in parts.items() if part is not None}
    )
    # Heads are a view of (B, N, h, d), as in the module: no kernel may count on packed strides.
    leaves = [torch.randn(BATCH, grid.tokens, HEADS, width) for _ in "qkv"]
    leaves = [leaf.to(device, dtype).requires_grad_() for leaf in leaves]
    q, k, v = (leaf.transpose(1, 2) for leaf in leaves)
    given = None if bias is None else bias.to(device)
    if kind.learned:
        leaves.append(given.requires_grad_())

    if backends.load(backend).refuse(Request.of(q, k, v, mask, given, 0.0)):
        with pytest.raises(Refused, match=f"backend={backend} cannot .+; .+ can"):
            attend(q, k, v, mask=mask, bias=given, backend=backend)
        return

    doubles = exact_copies(leaves)
    if kind.learned:
        bias = doubles[3]
    expected = attention(*(d.transpose(1, 2) for d in doubles[:3]), visible=visible, bias=bias)
    out = attend(q, k, v, mask=mask, bias=given, backend=backend)
    assert out.dtype == dtype
    assert out.shape == (BATCH, HEADS, grid.tokens, width)
    grads = assert_same(out, leaves, expected, doubles)
    assert dead.any() == (kind.mask is not None or kind.cut or (kind.padded and not grid.prefix))
    assert (out.cpu()[dead] == 0).all()
    assert (grads[0].cpu().transpose(1, 2)[dead] == 0).all()
    if kind.learned:
        assert (grads[3][given == float("-inf")] == 0).all()


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
