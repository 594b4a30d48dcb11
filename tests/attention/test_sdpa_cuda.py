"""SDPA's kernels on CUDA, as far as a machine without one can tell: what they are told.

What torch answers on a GPU is in test_gpu.py.
"""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitrail.attention import Mask, backends
from vitrail.attention.backends import Request, sdpa
from vitrail.attention.backends.sdpa import without_dead_rows

from .oracle import assert_same, attention, exact_copies

ENABLED = {
    SDPBackend.FLASH_ATTENTION: torch.backends.cuda.flash_sdp_enabled,
    SDPBackend.EFFICIENT_ATTENTION: torch.backends.cuda.mem_efficient_sdp_enabled,
    SDPBackend.CUDNN_ATTENTION: torch.backends.cuda.cudnn_sdp_enabled,
    SDPBackend.MATH: torch.backends.cuda.math_sdp_enabled,
}


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
    "name, kernel, operator",
    [
        ("sdpa_math", SDPBackend.MATH, "_scaled_dot_product_attention_math"),
        ("sdpa_flash", SDPBackend.FLASH_ATTENTION, "_scaled_dot_product_flash_attention"),
        (
            "sdpa_efficient",
            SDPBackend.EFFICIENT_ATTENTION,
            "_scaled_dot_product_efficient_attention",
        ),
        ("sdpa_cudnn", SDPBackend.CUDNN_ATTENTION, "_scaled_dot_product_cudnn_attention"),
    ],
)
def test_a_pinned_kernel_is_promised_and_the_only_one_that_torch_may_use(
    told, name, kernel, operator
):
    call(name, 15)
    assert told[0]["kernels"] == {kernel}
    assert (told[0]["scale"], told[0]["dropout_p"]) == (0.3, 0.25)
    request = Request("cuda", torch.bfloat16, 2, 3, 197, 197, 64, compute=(8, 0))
    assert backends.load(name).kernels(request).required == {f"aten::{operator}"}
    assert hasattr(torch.ops.aten, operator)


def test_torch_chooses_without_cudnn_where_its_gradients_are_nan(told):
    call("sdpa", 64)
    call("sdpa", 65, masked=True)
    with torch.no_grad():
        call("sdpa", 64, masked=True)
        call("sdpa", 15, queries=1)
    assert [given["kernels"] for given in told] == [set(ENABLED)] * 4
    told.clear()
    call("sdpa", 64, masked=True)
    call("sdpa", 192, masked=True)
    call("sdpa", 15, queries=1)
    assert [given["kernels"] for given in told] == [set(ENABLED) - {SDPBackend.CUDNN_ATTENTION}] * 3


@pytest.mark.parametrize("kind", ["visible", "bias"])
@pytest.mark.parametrize("kernel", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_a_call_whose_dead_rows_are_spared_is_still_attention(kernel, kind):
    torch.manual_seed(0)
    given = torch.rand(2, 1, 15, 15) > 0.3
    given[:, :, 4] = False
    if kind == "bias":
        given = torch.randn(1, 3, 15, 15).masked_fill(~given, float("-inf"))
    leaves = [leaf.requires_grad_() for leaf in torch.randn(3, 2, 3, 15, 8)]
    bias, dead = without_dead_rows(given)
    assert dead[:, :, 4].all()
    assert dead.sum() == dead[:, :, 4].numel()
    with sdpa_kernel(kernel):
        out = F.scaled_dot_product_attention(*leaves, attn_mask=bias).masked_fill(dead, 0.0)
    doubles = exact_copies(leaves)
    assert_same(out, leaves, attention(*doubles, **{kind: given}), doubles)
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
