"""On a CUDA device: the contract of every backend, the kernels that run, packed tokens, graphs.

Expectations are float64 on the CPU. `make gpu-check` runs this file; most of its minutes go to
compiling.
"""

import inspect
from dataclasses import replace
from fnmatch import fnmatchcase

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from vitrail.attention import Grid, Mask, MultiHeadAttention2d, attend, attend_packed, backends
from vitrail.attention.backends import Backend, Refused, Request, flash_attn
from vitrail.attention.patterns import GridPattern
from vitrail.attention.patterns.neighborhood import Neighborhood
from vitrail.attention.selection import gate
from vitrail.attention.selection.auto import Auto

from .cases import BATCH, HEADS, KINDS, mask_and_bias
from .flash_attn_stubs import PARAMETERS
from .oracle import assert_near, attention, dead_rows
from .test_packed import LENGTHS, begins_of, one_by_one

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


def moved(mask: Mask, bias: torch.Tensor | None) -> tuple[Mask, torch.Tensor | None]:
    parts = {"valid": mask.valid, "allowed": mask.allowed}
    parts = {name: part.to(DEVICE) for name, part in parts.items() if part is not None}
    return replace(mask, **parts), None if bias is None else bias.to(DEVICE)


def check(name: str, kind_name: str, grid: Grid, dtype: torch.dtype) -> None:
    """Outputs and gradients equal float64's on the CPU, or the call is refused as announced."""
    torch.manual_seed(0)
    backend, kind = usable(name), KINDS[kind_name]
    mask, bias = mask_and_bias(kind, grid, dtype)
    leaves = [torch.randn(BATCH, grid.tokens, HEADS, WIDTH).to(dtype) for _ in range(3)]
    doubles = [leaf.double().requires_grad_() for leaf in leaves]
    leaves = [leaf.to(DEVICE).requires_grad_() for leaf in leaves]
    there, bias_there = moved(mask, bias)
    double_bias = bias
    if kind.learned:
        double_bias = bias.double().requires_grad_()
        leaves.append(bias_there.requires_grad_())
        doubles.append(double_bias)
    q, k, v = (leaf.transpose(1, 2) for leaf in leaves[:3])
    if backend.refuse(Request.of(q, k, v, there, bias_there, 0.0)):
        with pytest.raises(Refused, match=f"backend={name} cannot .+; .+ can"):
            attend(q, k, v, mask=there, bias=bias_there, backend=name)
        return

    visible = mask.visible(torch.device("cpu"))
    expected = attention(
        *(double.transpose(1, 2) for double in doubles[:3]), visible=visible, bias=double_bias
    )
    towards = torch.randn(expected.shape).to(dtype)
    wanted = torch.autograd.grad(expected, doubles, towards.double())
    out = attend(q, k, v, mask=there, bias=bias_there, backend=name)
    grads = torch.autograd.grad(out, leaves, towards.to(DEVICE))

    assert out.dtype == dtype
    assert_near("output", out.cpu(), expected)
    for label, actual, want in zip(("dq", "dk", "dv", "dbias"), grads, wanted, strict=False):
        assert actual.dtype == dtype
        assert_near(label, actual.cpu(), want)
    dead = dead_rows(visible, bias, (BATCH, HEADS, grid.tokens, grid.tokens))
    assert (out.cpu()[dead] == 0).all()
    assert (grads[0].cpu().transpose(1, 2)[dead] == 0).all()


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
    mask, bias = moved(*mask_and_bias(KINDS[kind], Grid(12, 16, 5), torch.bfloat16))
    q, k, v = (
        torch.randn(BATCH, HEADS, 197, WIDTH, device=DEVICE, dtype=torch.bfloat16).requires_grad_()
        for _ in "qkv"
    )
    request = Request.of(q, k, v, mask, bias, 0.0)
    if one.refuse(request):
        pytest.skip(f"backend={backend} takes no {kind}")

    def call() -> None:
        attend(q, k, v, mask=mask, bias=bias, backend=one).sum().backward()
        torch.cuda.synchronize()

    assert_promised(one.kernels(request), seen_while(call))


@pytest.mark.parametrize("backend", ["sdpa_efficient", "sdpa_flash", "flash_attn", "flex"])
def test_a_compiled_layer_equals_itself_and_keeps_its_kernel(backend):
    one = usable(backend)
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = MultiHeadAttention2d(HEADS * WIDTH, HEADS, backend=backend)
    layer = layer.to(DEVICE, torch.bfloat16)
    compiled = torch.compile(layer, fullgraph=True)
    grid = Grid(12, 16, 5)
    x = torch.randn(BATCH, grid.tokens, HEADS * WIDTH, device=DEVICE, dtype=torch.bfloat16)
    valid = torch.ones(BATCH, 12, 16, dtype=torch.bool, device=DEVICE)
    valid[0, -2:] = False
    masks = {} if one.refuse(plain(masks=frozenset({"padding"}))) else {"valid": valid}
    sides = []
    for side in (layer, compiled):
        leaf = x.clone().requires_grad_()
        out = side(leaf, grid, **masks)
        sides.append((out, *torch.autograd.grad(out.float().square().sum(), [leaf])))
    for ours, theirs in zip(*sides, strict=True):
        assert (ours - theirs).float().norm() <= 2e-2 * ours.float().norm()

    def call() -> None:
        compiled(x.requires_grad_(), grid, **masks).sum().backward()
        torch.cuda.synchronize()

    promise = one.kernels(plain(masks=frozenset({"padding"} if masks else ())), compiled=True)
    assert_promised(promise, seen_while(call))
    torch._dynamo.reset()


def seen_while(call) -> set[str]:
    """Operators and device kernels by name; the call is made once before, to set it up."""
    call()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        call()
    return {event.key for event in profiler.key_averages()}


def assert_promised(promise: backends.Kernels, seen: set[str]) -> None:
    for pattern in promise.required:
        assert any(fnmatchcase(name, pattern) for name in seen), f"{pattern} is not in {seen}"
    for pattern in promise.forbidden:
        assert not any(fnmatchcase(name, pattern) for name in seen)


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("backend", ["eager", "sdpa_flash", "sdpa_efficient", "flash_attn"])
def test_packed_samples_equal_a_loop_over_them(backend, lengths, told):
    usable(backend)
    torch.manual_seed(0)
    tensors = [torch.randn(sum(lengths), HEADS, WIDTH).to(torch.bfloat16) for _ in "qkv"]
    doubles = [tensor.double().requires_grad_() for tensor in tensors]
    leaves = [tensor.to(DEVICE).requires_grad_() for tensor in tensors]
    out = attend_packed(
        *leaves,
        cu_seqlens=begins_of(lengths).to(DEVICE),
        max_seqlen=max(lengths) if told else None,
        backend=backend,
    )
    expected = one_by_one(doubles, lengths)
    towards = torch.randn(expected.shape).to(torch.bfloat16)
    assert_near("output", out.cpu(), expected)
    for label, ours, theirs in zip(
        ("dq", "dk", "dv"),
        torch.autograd.grad(out, leaves, towards.to(DEVICE)),
        torch.autograd.grad(expected, doubles, towards.double()),
        strict=True,
    ):
        assert_near(label, ours.cpu(), theirs)


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
