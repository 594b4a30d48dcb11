"""On a CUDA device: the contract of every backend, the kernels that run, packed tokens, graphs.

Expectations are float64 on the CPU. `make gpu-check` runs this file; most of its minutes go to
compiling.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase

import pytest
import torch

from vitrail.attention import Grid, Mask, MultiHeadAttention2d, attend, backends
from vitrail.attention.backends import Backend, Request, flash_attn
from vitrail.attention.patterns import GridPattern
from vitrail.attention.patterns.neighborhood import Neighborhood
from vitrail.attention.selection import gate
from vitrail.attention.selection.auto import Auto

from . import test_contract, test_packed
from .cases import BATCH, HEADS, KINDS, mask_and_bias, seen_while
from .flash_attn_stubs import PARAMETERS
from .oracle import assert_near, attention, with_gradients

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
WIDTH = 64
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
GRIDS = (Grid(3, 5, 1), Grid(8, 8), Grid(12, 16, 5))

quick = [name for name in backends.names() if name != "flex"]  # flex compiles for each kind of call


def plain(dtype: torch.dtype = torch.bfloat16, **changes) -> Request:
    compute = backends.compute_capability(torch.device(DEVICE))
    return replace(
        Request(DEVICE, dtype, BATCH, HEADS, 197, 197, WIDTH, compute=compute), **changes
    )


def usable(name: str) -> Backend:
    """The backend, if it computes the plainest call there is on this GPU."""
    backend = backends.load(name)
    if lacks := backend.refuse(plain()):
        pytest.skip(f"backend={name} cannot {' or '.join(lacks)}")
    return backend


def check(name: str, kind: str, grid: Grid, dtype: torch.dtype) -> None:
    usable(name)
    test_contract.check(name, kind, grid, dtype, DEVICE, WIDTH)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", quick)
def test_a_backend_equals_float64_on_the_gpu_under_every_mask(backend, kind, grid, dtype):
    check(backend, kind, grid, dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_flex_trains_under_every_mask(kind):
    check("flex", kind, Grid(12, 16, 5), torch.bfloat16)


@pytest.mark.parametrize("kind", ["no mask", "padding and learned bias"])
def test_flex_trains_in_fp32_too(kind):
    check("flex", kind, Grid(3, 5, 1), torch.float32)


def test_flex_computes_a_pattern_whose_blocks_are_mostly_hidden():
    usable("flex")
    grid = Grid(32, 24, 1)
    mask = Mask(pattern=GridPattern(Neighborhood(5), grid))
    q, k, v = torch.randn(3, 1, HEADS, grid.tokens, WIDTH).to(torch.bfloat16)
    expected = attention(q, k, v, visible=mask.visible(q.device))
    out = attend(*(tensor.to(DEVICE) for tensor in (q, k, v)), mask=mask, backend="flex")
    assert_near("output", out.cpu(), expected)


@pytest.mark.parametrize("kind", ["no mask", "padding", "bias"])
@pytest.mark.parametrize("backend", backends.names())
def test_the_promised_kernel_runs_on_the_gpu(backend, kind):
    one = usable(backend)
    mask, bias = mask_and_bias(KINDS[kind], Grid(12, 16, 5), torch.bfloat16)
    mask = Mask(valid=None if mask.valid is None else mask.valid.to(DEVICE))
    bias = None if bias is None else bias.to(DEVICE)
    qkv = torch.randn(3, BATCH, HEADS, 197, WIDTH, device=DEVICE, dtype=torch.bfloat16)
    request = Request.of(*qkv.requires_grad_(), mask, bias, 0.0)
    if one.refuse(request):
        pytest.skip(f"backend={backend} takes no {kind}")
    assert_promised(
        one.kernels(request), lambda: attend(*qkv, mask=mask, bias=bias, backend=one).sum()
    )


def assert_promised(promise: backends.Kernels, forward: Callable[[], torch.Tensor]) -> None:
    """What runs forward and backward; once before, to set it up."""

    def step() -> None:
        forward().backward()
        torch.cuda.synchronize()

    step()
    seen = seen_while(step)
    for pattern in promise.required:
        assert any(fnmatchcase(name, pattern) for name in seen), f"{pattern} is not in {seen}"
    for pattern in promise.forbidden:
        assert not any(fnmatchcase(name, pattern) for name in seen)


@pytest.mark.usefixtures("fresh_graphs")
@pytest.mark.parametrize("backend", ["sdpa_efficient", "sdpa_flash", "flash_attn", "flex"])
def test_a_compiled_layer_equals_itself_and_keeps_its_kernel(backend):
    one = usable(backend)
    torch.manual_seed(0)
    layer = MultiHeadAttention2d(HEADS * WIDTH, HEADS, backend=backend)
    layer = layer.to(DEVICE, torch.bfloat16)
    compiled = torch.compile(layer, fullgraph=True)
    grid = Grid(12, 16, 5)
    x = torch.randn(BATCH, grid.tokens, HEADS * WIDTH, device=DEVICE, dtype=torch.bfloat16)
    x.requires_grad_()
    valid = torch.ones(BATCH, 12, 16, dtype=torch.bool, device=DEVICE)
    valid[0, -2:] = False
    masks = {} if one.refuse(plain(masks=frozenset({"padding"}))) else {"valid": valid}
    sides = [with_gradients(call(x, grid, **masks), [x]) for call in (layer, compiled)]
    for ours, theirs in zip(*sides, strict=True):
        assert (ours - theirs).float().norm() <= 2e-2 * ours.float().norm()
    promise = one.kernels(plain(masks=frozenset({"padding"} if masks else ())), compiled=True)
    assert_promised(promise, lambda: compiled(x, grid, **masks).sum())


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("lengths", test_packed.LENGTHS.values(), ids=test_packed.LENGTHS)
@pytest.mark.parametrize("backend", ["eager", "sdpa_flash", "sdpa_efficient", "flash_attn"])
def test_packed_samples_equal_a_loop_over_them(backend, lengths, told):
    usable(backend)
    told = max(lengths) if told else None
    options = {"dtype": torch.bfloat16, "width": WIDTH, "device": DEVICE}
    test_packed.check(lengths, backend, told=told, **options)


@pytest.mark.parametrize("backend", quick)
def test_dropped_weights_are_made_up_for_on_average(backend):
    one = usable(backend)
    if one.refuse(plain(dropout=0.25)):
        pytest.skip(f"backend={backend} drops nothing")
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, HEADS, 16, WIDTH, device=DEVICE).to(torch.bfloat16)
    many = (tensor.expand(4000, -1, -1, -1) for tensor in (q, k, v))
    mean = attend(*many, dropout_p=0.25, backend=one).float().mean(0)
    expected = attend(q.float(), k.float(), v.float(), backend="reference")[0]
    torch.testing.assert_close(mean, expected, atol=0.08, rtol=0)


@pytest.mark.parametrize("tokens", [64, 192, 704])
@pytest.mark.parametrize("backend", ["sdpa", "sdpa_efficient", "eager"])
def test_very_negative_scores_under_a_mask_give_finite_gradients(backend, tokens):
    # What makes cuDNN's dq NaN at these lengths: pytorch#196678.
    usable(backend)
    torch.manual_seed(0)
    q, k, v = (0.1 * torch.randn(3, 1, 1, tokens, WIDTH, device=DEVICE)).to(torch.bfloat16)
    q[..., 0], k[..., 0] = 1.0, -120 * WIDTH**0.5
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    allowed = torch.ones(1, 1, tokens, tokens, dtype=torch.bool, device=DEVICE).tril()
    out = attend(*leaves, mask=Mask(allowed=allowed), backend=backend)
    for tensor in (out, *torch.autograd.grad(out, leaves, torch.randn_like(out))):
        assert torch.isfinite(tensor).all()


@pytest.mark.parametrize("masks", [(), ("padding",)], ids=str)
@pytest.mark.parametrize("backend", quick)
def test_a_backend_passes_the_gate_on_the_gpu(backend, masks):
    one = usable(backend)
    request = plain(masks=frozenset(masks))
    if one.refuse(request):
        pytest.skip(f"backend={backend} takes no such mask")
    assert gate.prove(request, one).passed


def test_auto_finds_the_fastest_here(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    choice = Auto().choice(plain(masks=frozenset({"padding"})))
    assert choice.name in backends.permitted(plain(masks=frozenset({"padding"})))
    assert len(choice.times) > 1


@pytest.mark.parametrize("generation", flash_attn.GENERATIONS.values(), ids=lambda one: one.name)
def test_an_installed_flash_attn_has_the_parameters_that_are_passed(generation):
    if not generation.installed():
        pytest.skip(f"{generation.name} is not installed")
    module = flash_attn._load(generation)
    assert not isinstance(module, str), module
    for name, ours in zip(flash_attn.FUNCTIONS, PARAMETERS[generation.name], strict=True):
        theirs = inspect.signature(getattr(module, name)).parameters
        passed = {"softmax_scale", "causal", "deterministic"}
        if generation.dropout:
            passed |= {"dropout_p"}
        if "varlen" in name:
            passed |= {"cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"}
        assert passed <= set(theirs)
        assert passed <= set(ours.split())
        assert list(theirs)[:3] == ["q", "k", "v"]
