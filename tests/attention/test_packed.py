"""Packed tokens: each sample sees itself alone, as if it had come by itself."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from vitrail.attention import attend, attend_packed, backends, packed
from vitrail.attention.backends import Refused
from vitrail.attention.backends.flash_attn import FlashAttn

from .cases import ON_CPU
from .flash_attn_stubs import MODULES, install
from .oracle import assert_near, attention

HEADS, WIDTH = 3, 8
LENGTHS = {
    "one sample": [7],
    "equal": [4, 4, 4],
    "many": [5, 1, 64, 5, 3, 65, 1],
    "with empty ones": [0, 3, 0, 0, 5, 0],
}


def begins_of(lengths: list[int], dtype=torch.int32) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


def drawn(lengths: list[int], *, width: int = WIDTH, dtype=torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(0)
    tokens = torch.randn(3, sum(lengths), HEADS, width).to(dtype)
    return [tensor.requires_grad_() for tensor in tokens]


def one_by_one(tensors: list[torch.Tensor], lengths: list[int], scale=None) -> torch.Tensor:
    """Float64 attention of each sample by itself, end to end."""
    outs = []
    for parts in zip(*(tensor.split(lengths) for tensor in tensors), strict=True):
        if len(parts[0]):
            heads_first = (part.transpose(0, 1)[None] for part in parts)
            outs.append(attention(*heads_first, scale=scale)[0].transpose(0, 1))
    return torch.cat(outs)


def check(lengths: list[int], backend: str, *, dtype=torch.float32, scale=None, **given) -> None:
    """Outputs and gradients equal those of a loop over the samples in float64."""
    tensors = drawn(lengths, dtype=dtype)
    doubles = [tensor.detach().double().requires_grad_() for tensor in tensors]
    given.setdefault("cu_seqlens", begins_of(lengths))
    out = attend_packed(*tensors, scale=scale, backend=backend, **given)
    expected = one_by_one(doubles, lengths, scale)
    towards = torch.randn(expected.shape).to(dtype)
    assert out.dtype == dtype
    assert_near("output", out, expected)
    for name, ours, theirs in zip(
        ("dq", "dk", "dv"),
        torch.autograd.grad(out, tensors, towards),
        torch.autograd.grad(expected, doubles, towards.double()),
        strict=True,
    ):
        assert_near(name, ours, theirs)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("backend", ON_CPU)
def test_packed_samples_equal_a_loop_over_them_forward_and_backward(backend, lengths):
    check(lengths, backend)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("backend", ON_CPU)
def test_packed_halves_equal_a_loop_in_float64(backend, dtype):
    check(LENGTHS["many"], backend, dtype=dtype)


def test_begins_may_be_long_and_the_scale_ones_own():
    check([3, 5], "sdpa", scale=0.1, cu_seqlens=begins_of([3, 5], torch.int64))
    check([3, 5], "sdpa", max_seqlen=5)
    check([3, 5], "sdpa", max_seqlen=100)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any))
def test_any_lengths_equal_a_loop(lengths):
    check(lengths, "sdpa")


def test_a_sample_changes_nothing_in_another():
    q, k, v = drawn([4, 6, 4])
    out = attend_packed(q, k, v, cu_seqlens=begins_of([4, 6, 4]))
    with torch.no_grad():
        k[4:10], v[4:10] = float("nan"), float("inf")
    other = attend_packed(q, k, v, cu_seqlens=begins_of([4, 6, 4]))
    assert torch.equal(out[:4], other[:4])
    assert torch.equal(out[10:], other[10:])


def test_values_may_be_narrower_than_keys():
    q, k, v = drawn([4, 3])
    out = attend_packed(q, k, v[..., :5], cu_seqlens=begins_of([4, 3]))
    assert_near("output", out, one_by_one([q, k, v[..., :5]], [4, 3]))


@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0]])
def test_no_tokens_at_all_give_none_back(lengths):
    q, k, v = drawn(lengths)
    out = attend_packed(q, k, v, cu_seqlens=begins_of(lengths))
    assert out.shape == (0, HEADS, WIDTH)
    out.sum().backward()


def test_samples_of_one_length_share_a_call(monkeypatch):
    calls = []

    def listen(q, k, v, **options):
        calls.append(tuple(q.shape))
        return attend(q, k, v, **options)

    monkeypatch.setattr(packed, "attend", listen)
    lengths = LENGTHS["many"]
    attend_packed(*drawn(lengths), cu_seqlens=begins_of(lengths))
    assert sorted(calls) == sorted((lengths.count(n), HEADS, n, WIDTH) for n in set(lengths))


@pytest.mark.parametrize("generation", sorted(MODULES))
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_flash_attn_takes_all_samples_in_one_call(lengths, generation, monkeypatch):
    monkeypatch.setattr(FlashAttn, "capabilities", {"cpu": FlashAttn.capabilities["cuda"]})
    monkeypatch.setattr(backends, "compute_capability", lambda _: (9, 0))
    stub = install(monkeypatch, generation)[generation]
    begins = begins_of(lengths, torch.int64)
    check(lengths, "flash_attn", dtype=torch.bfloat16, scale=0.3, cu_seqlens=begins)
    (call,) = stub.calls
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        assert call[name].dtype == torch.int32
        assert call[name].tolist() == begins.tolist()
    assert (call["max_seqlen_q"], call["max_seqlen_k"]) == (max(lengths),) * 2
    assert call["softmax_scale"] == 0.3
    assert call["causal"] is False


def test_told_the_longest_length_a_packed_kernel_needs_no_value(monkeypatch):
    monkeypatch.setattr(backends, "compute_capability", lambda _: (9, 0))
    with FakeTensorMode():
        tokens = torch.empty(10, 3, 8, device="cuda", dtype=torch.bfloat16)
        begins = torch.empty(4, device="cuda", dtype=torch.int64)
        given = {"cu_seqlens": begins, "backend": "sdpa_flash"}
        assert attend_packed(tokens, tokens, tokens, max_seqlen=6, **given).shape == tokens.shape
        with pytest.raises(DataDependentOutputException):
            attend_packed(tokens, tokens, tokens, **given)


@pytest.mark.parametrize(
    "begins, told, message",
    [
        ([1, 3, 7], None, r"cu_seqlens must begin with 0.* got \[1, 3, 7\]"),
        ([], None, r"cu_seqlens must begin with 0.* got \[\]"),
        ([0, 3, 6], None, r"cu_seqlens must .*end with the 7 tokens there are, got \[0, 3, 6\]"),
        ([0, 3, 8], None, r"cu_seqlens must .*end with the 7 tokens there are, got \[0, 3, 8\]"),
        ([0, 5, 3, 7], None, r"cu_seqlens must .*never fall.* got \[0, 5, 3, 7\]"),
        ([0, 3, 7], 3, r"max_seqlen must be at least the longest sample's 4 tokens, got 3"),
    ],
)
def test_lengths_that_do_not_fit_are_refused_in_one_line(begins, told, message):
    q, k, v = drawn([7])
    begins = torch.tensor(begins, dtype=torch.int32)
    with pytest.raises(ValueError, match=message) as error:
        attend_packed(q, k, v, cu_seqlens=begins, max_seqlen=told)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "begins",
    [torch.tensor([0.0, 7.0]), torch.tensor([[0, 7]]), torch.tensor([0, 7], dtype=torch.int16)],
)
def test_begins_are_one_row_of_integers(begins):
    q, k, v = drawn([7])
    with pytest.raises(ValueError, match=r"cu_seqlens is torch\.\w+ of shape .*torch\.int32 or"):
        attend_packed(q, k, v, cu_seqlens=begins)


def test_tensors_that_are_not_packed_are_refused_with_their_shapes():
    q, k, v = drawn([7])
    begins = begins_of([7])
    with pytest.raises(ValueError, match=r"shapes \(1, 7, 3, 8\), .*\(total, heads, width\)"):
        attend_packed(q[None], k[None], v[None], cu_seqlens=begins)
    with pytest.raises(ValueError, match=r"shapes \(7, 3, 8\), \(6, 3, 8\), \(7, 3, 8\)"):
        attend_packed(q, k[1:], v, cu_seqlens=begins)


def test_a_backend_that_cannot_is_refused_as_elsewhere():
    q, k, v = drawn([3, 5])
    begins = begins_of([3, 5])
    with pytest.raises(Refused, match=r"^backend=flash_attn cannot run on cpu"):
        attend_packed(q, k, v, cu_seqlens=begins, backend="flash_attn")
    with pytest.raises(Refused, match=r"^backend=sdpa_flash cannot drop attention weights"):
        attend_packed(q, k, v, cu_seqlens=begins, dropout_p=0.1, backend="sdpa_flash")


def test_dropout_acts_and_a_seed_repeats_it():
    q, k, v = drawn([3, 5])
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(attend_packed(q, k, v, cu_seqlens=begins_of([3, 5]), dropout_p=0.5))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


def test_auto_may_choose_for_each_length(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    check([3, 5, 3], "auto")
