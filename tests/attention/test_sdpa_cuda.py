"""SDPA's kernels on CUDA, as far as a machine without one can tell: what they refuse and are told.

What torch answers on a GPU is in test_gpu.py.
"""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitrail.attention import Mask, attend, backends
from vitrail.attention.backends import Refused, Request, resolve, sdpa
from vitrail.attention.backends.sdpa import without_dead_rows

from .oracle import assert_near, attention

HALF = Request(
    "cuda", torch.bfloat16, batch=2, heads=3, queries=197, keys=197, width=64, compute=(8, 0)
)
KEYS, DENSE, PATTERN = ({kind} for kind in ("padding", "mask", "pattern"))
ENABLED = {
    SDPBackend.FLASH_ATTENTION: torch.backends.cuda.flash_sdp_enabled,
    SDPBackend.EFFICIENT_ATTENTION: torch.backends.cuda.mem_efficient_sdp_enabled,
    SDPBackend.CUDNN_ATTENTION: torch.backends.cuda.cudnn_sdp_enabled,
    SDPBackend.MATH: torch.backends.cuda.math_sdp_enabled,
}


def changed(**changes) -> Request:
    masks = frozenset(changes.pop("masks", ()))
    return replace(HALF, masks=masks, **changes)


@pytest.mark.parametrize(
    "name, request_",
    [
        ("sdpa_efficient", changed()),
        ("sdpa_efficient", changed(masks=KEYS | DENSE | PATTERN, bias=True, bias_grad=True)),
        ("sdpa_efficient", changed(dtype=torch.float32, width=36, dropout=0.1)),
        ("sdpa_efficient", changed(dtype=torch.float16, compute=(7, 5), width=264)),
        ("sdpa_efficient", changed(dtype=torch.float32, compute=(5, 0))),
        ("sdpa_cudnn", changed()),
        ("sdpa_cudnn", changed(masks=KEYS | DENSE | PATTERN, bias=True, dropout=0.125)),
        ("sdpa_cudnn", changed(width=128, dtype=torch.float16, compute=(12, 0))),
        ("sdpa_cudnn", changed(masks=KEYS, queries=256, keys=256)),
        ("sdpa_cudnn", changed(masks=KEYS, queries=64, keys=64, backward=False)),
        ("sdpa_cudnn", changed(queries=64, keys=64)),
        ("sdpa_cudnn", changed(queries=1, backward=False)),
        ("sdpa_flash", changed(width=192, dropout=0.1, compute=(8, 6))),
        ("sdpa_flash", changed(width=256, compute=(8, 9))),
        ("sdpa_flash", changed(width=200, backward=False, compute=(8, 9))),
        ("sdpa_flash", changed(width=200, dropout=0.1, compute=(9, 0))),
    ],
)
def test_a_kernel_takes_what_torchs_source_says_it_takes(name, request_):
    assert resolve(request_, name).name == name


@pytest.mark.parametrize(
    "name, request_, clash",
    [
        ("sdpa_efficient", changed(dtype=torch.float64), "compute in float64"),
        ("sdpa_efficient", changed(compute=(7, 5)), "compute in bfloat16 below compute capability"),
        ("sdpa_efficient", changed(compute=(3, 7)), r"run on compute capability 3\.7"),
        ("sdpa_efficient", changed(width=20), r"take head width 20 \(a multiple of 8\)"),
        (
            "sdpa_efficient",
            changed(dtype=torch.float32, width=6),
            r"take head width 6 \(a multiple of 4\)",
        ),
        (
            "sdpa_efficient",
            changed(bias=True, bias_grad=True, backward=False),
            "give the gradient of a bias alone, without that of q, k or v",
        ),
        ("sdpa_cudnn", changed(dtype=torch.float32), "compute in float32"),
        ("sdpa_cudnn", changed(compute=(7, 5)), r"run on compute capability 7\.5"),
        ("sdpa_cudnn", changed(width=136), r"take head width 136 \(at most 128\)"),
        ("sdpa_cudnn", changed(width=12), r"take head width 12 \(a multiple of 8\)"),
        ("sdpa_cudnn", changed(bias=True, bias_grad=True), "give the gradient of a bias"),
        ("sdpa_cudnn", changed(dropout=0.1), r"drop 0\.1 of the weights \(in steps of 1/16 only\)"),
        ("sdpa_cudnn", changed(dropout=0.5, queries=1), "drop weights of a single query"),
        ("sdpa_cudnn", changed(keys=1), "look at a single key"),
        (
            "sdpa_cudnn",
            changed(masks=KEYS, queries=64, keys=64),
            r"give gradients under a mask of 64 keys \(NaN, pytorch#196678\)",
        ),
        ("sdpa_cudnn", changed(bias=True, queries=5, keys=192), "under a mask of 192 keys"),
        ("sdpa_cudnn", changed(queries=1), r"a single query \(NaN, cudnn-frontend#1072\)"),
        (
            "sdpa_flash",
            changed(width=200, compute=(8, 6)),
            r"compute gradients at head width 200 on compute capability 8\.6",
        ),
        (
            "sdpa_flash",
            changed(width=256, dropout=0.1, compute=(12, 0)),
            r"head width 256 with dropout on compute capability 12\.0",
        ),
    ],
)
def test_a_kernel_says_what_it_cannot_do_and_who_can(name, request_, clash):
    with pytest.raises(Refused, match=rf"^backend={name} cannot .*{clash}.*; .*reference.* can$"):
        resolve(request_, name)


@pytest.mark.parametrize("name", ["sdpa_efficient", "sdpa_cudnn"])
def test_the_kernels_of_cuda_refuse_a_cpu_for_real(name):
    q = torch.randn(2, 3, 16, 8)
    with pytest.raises(Refused, match=f"^backend={name} cannot run on cpu; eager, .* can$"):
        attend(q, q, q, backend=name)


@pytest.mark.parametrize(
    "name, operator",
    [
        ("sdpa_flash", "aten::_scaled_dot_product_flash_attention"),
        ("sdpa_efficient", "aten::_scaled_dot_product_efficient_attention"),
        ("sdpa_cudnn", "aten::_scaled_dot_product_cudnn_attention"),
    ],
)
def test_each_pinned_kernel_promises_its_own_operator(name, operator):
    backend = backends.load(name)
    assert backend.kernels(HALF).required == {operator}
    namespace, _, function = operator.partition("::")
    assert hasattr(getattr(torch.ops, namespace), function)


@pytest.fixture
def told(monkeypatch) -> list[dict]:
    """What each call of scaled_dot_product_attention was given, and the kernels it could use."""
    calls = []

    def listen(q, *_, **given):
        enabled = {kernel for kernel, is_enabled in ENABLED.items() if is_enabled()}
        calls.append({**given, "kernels": enabled})
        return torch.empty_like(q)

    monkeypatch.setattr(sdpa.F, "scaled_dot_product_attention", listen)
    return calls


def call(name: str, tokens: int, *, queries: int | None = None, masked: bool = False) -> None:
    """One call of the backend on tensors that claim to be on CUDA and hold nothing."""
    with FakeTensorMode():
        q = torch.empty(2, 3, queries or tokens, 8, device="cuda", dtype=torch.bfloat16)
        k = torch.empty(2, 3, tokens, 8, device="cuda", dtype=torch.bfloat16)
        valid = torch.empty(2, tokens, device="cuda", dtype=torch.bool) if masked else None
        out = backends.load(name)(
            q, k, k, mask=Mask(valid=valid), bias=None, scale=0.3, dropout_p=0.25
        )
        assert out.shape == q.shape


@pytest.mark.parametrize(
    "name, kernel",
    [
        ("sdpa_math", SDPBackend.MATH),
        ("sdpa_flash", SDPBackend.FLASH_ATTENTION),
        ("sdpa_efficient", SDPBackend.EFFICIENT_ATTENTION),
        ("sdpa_cudnn", SDPBackend.CUDNN_ATTENTION),
    ],
)
def test_a_pinned_kernel_is_the_only_one_that_torch_may_use(told, name, kernel):
    call(name, 15)
    assert told[0]["kernels"] == {kernel}
    assert (told[0]["scale"], told[0]["dropout_p"]) == (0.3, 0.25)


def test_torch_chooses_among_all_kernels_where_cudnn_is_trusted(told):
    call("sdpa", 64)
    call("sdpa", 65, masked=True)
    with torch.no_grad():
        call("sdpa", 64, masked=True)
        call("sdpa", 15, queries=1)
    assert [given["kernels"] for given in told] == [set(ENABLED)] * 4


def test_torch_chooses_without_cudnn_where_its_gradients_are_nan(told):
    call("sdpa", 64, masked=True)
    call("sdpa", 192, masked=True)
    call("sdpa", 15, queries=1)
    assert [given["kernels"] for given in told] == [set(ENABLED) - {SDPBackend.CUDNN_ATTENTION}] * 3


def visible_and_bias() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    visible = torch.rand(2, 1, 15, 15) > 0.3
    visible[:, :, 4] = False
    return visible, torch.randn(1, 3, 15, 15).masked_fill(~visible, float("-inf"))


@pytest.mark.parametrize("kind", [0, 1], ids=["bool", "float"])
@pytest.mark.parametrize("kernel", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_a_call_whose_dead_rows_are_spared_is_still_attention(kernel, kind):
    q, k, v = torch.randn(3, 2, 3, 15, 8, requires_grad=True)
    given = visible_and_bias()[kind]
    bias, dead = without_dead_rows(given)
    assert dead[:, :, 4].all()
    assert dead.sum() == dead[:, :, 4].numel()
    with sdpa_kernel(kernel):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).masked_fill(dead, 0.0)

    doubles = [tensor.detach().double().requires_grad_() for tensor in (q, k, v)]
    expected = attention(*doubles, **{("visible", "bias")[kind]: given})
    towards = torch.randn_like(out)
    assert_near("output", out, expected)
    for ours, theirs in zip(
        torch.autograd.grad(out, (q, k, v), towards),
        torch.autograd.grad(expected, doubles, towards.double()),
        strict=True,
    ):
        assert_near("gradient", ours, theirs)
    assert (out[:, :, 4] == 0).all()


def test_rows_of_a_padding_mask_are_spared_by_the_sample():
    valid = torch.tensor([[True, False], [False, False]])
    bias, dead = without_dead_rows(valid[:, None, None, :])
    assert bias[:, 0, 0].tolist() == [[True, False], [True, True]]
    assert dead.flatten().tolist() == [False, True]


def test_packed_tokens_reach_torchs_flash_operator_at_a_width_that_it_takes():
    with FakeTensorMode():
        tokens = torch.empty(10, 3, 12, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        begins = torch.empty(3, device="cuda", dtype=torch.int32)
        out = backends.load("sdpa_flash").packed(
            tokens, tokens, tokens, cu_seqlens=begins, max_seqlen=6, scale=0.3, dropout_p=0.0
        )
    assert out.shape == tokens.shape
    assert out.requires_grad
