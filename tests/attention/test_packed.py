"""Packed tokens: each sample sees itself alone, as if it had come by itself."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from vitrail.attention import attend, attend_packed, backends, packed
from vitrail.attention.backends import Refused

from .cases import ON_CPU
from .flash_attn_stubs import MODULES, install_on_a_hopper
from .oracle import assert_near, assert_same, attention, exact_copies

HEADS, WIDTH = 3, 8
LENGTHS = {
    "one sample": [7],
    "equal": [4, 4, 4],
    "many": [5, 1, 64, 5, 3, 65, 1],
    "with empty ones": [0, 3, 0, 0, 5, 0],
}


def begins_of(lengths: list[int], dtype=torch.int32) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


def drawn(lengths: list[int], *, dtype=torch.float32, width: int = WIDTH, device="cpu"):
    torch.manual_seed(0)
    tokens = torch.randn(3, sum(lengths), HEADS, width).to(device, dtype)
    return [tensor.requires_grad_() for tensor in tokens]


def one_by_one(tensors: list[torch.Tensor], lengths: list[int], scale=None) -> torch.Tensor:
    """Float64 attention of each sample by itself, end to end."""
    outs = []
    for parts in zip(*(tensor.split(lengths) for tensor in tensors), strict=True):
        if len(parts[0]):
            heads_first = (part.transpose(0, 1)[None] for part in parts)
            outs.append(attention(*heads_first, scale=scale)[0].transpose(0, 1))
    return torch.cat(outs)


def check(lengths: list[int], backend: str, *, scale=None, told=None, begins=None, **options):
    """Outputs and gradients equal those of a loop over the samples in float64."""
    tensors = drawn(lengths, **options)
    doubles = exact_copies(tensors)
    begins = (begins_of(lengths) if begins is None else begins).to(tensors[0].device)
    out = attend_packed(*tensors, cu_seqlens=begins, max_seqlen=told, scale=scale, backend=backend)
    assert out.dtype == tensors[0].dtype
    assert_same(out, tensors, one_by_one(doubles, lengths, scale), doubles)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("backend", ON_CPU)
def test_packed_samples_equal_a_loop_over_them_forward_and_backward(backend, lengths):
    check(lengths, backend)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("backend", ON_CPU)
def test_packed_halves_equal_a_loop_in_float64(backend, dtype):
    check(LENGTHS["many"], backend, dtype=dtype)


def test_begins_may_be_long_and_the_scale_ones_own():
    check([3, 5], "sdpa", scale=0.1, begins=begins_of([3, 5], torch.int64))
    check([3, 5], "sdpa", told=5)
    check([3, 5], "sdpa", told=100)


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
    calls = install_on_a_hopper(monkeypatch, generation)
    begins = begins_of(lengths, torch.int64)
    check(lengths, "flash_attn", dtype=torch.bfloat16, scale=0.3, begins=begins)
    (call,) = calls
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
        (torch.tensor([0.0, 7.0]), None, r"cu_seqlens is torch\.float32 of .*torch\.int32 or"),
        (torch.tensor([[0, 7]]), None, r"cu_seqlens is .* of shape \(1, 2\)"),
        (torch.tensor([0, 7], dtype=torch.int16), None, r"cu_seqlens is torch\.int16 of shape"),
    ],
)
def test_lengths_that_do_not_fit_are_refused_in_one_line(begins, told, message):
    if isinstance(begins, list):
        begins = torch.tensor(begins, dtype=torch.int32)
    with pytest.raises(ValueError, match=message) as error:
        attend_packed(*drawn([7]), cu_seqlens=begins, max_seqlen=told)
    assert "\n" not in str(error.value)


def test_tensors_that_are_not_packed_are_refused_with_their_shapes():
    q, k, v = drawn([7])
    begins = begins_of([7])
    with pytest.raises(ValueError, match=r"shapes \(1, 7, 3, 8\), .*\(total, heads, width\)"):
        attend_packed(q[None], k[None], v[None], cu_seqlens=begins)
    with pytest.raises(ValueError, match=r"shapes \(7, 3, 8\), \(6, 3, 8\), \(7, 3, 8\)"):
        attend_packed(q, k[1:], v, cu_seqlens=begins)


def test_a_backend_that_cannot_is_refused_as_elsewhere():
    given = {"cu_seqlens": begins_of([3, 5]), "dropout_p": 0.1}
    for backend, lack in (("flash_attn", "run on cpu"), ("sdpa_flash", "drop attention weights")):
        with pytest.raises(Refused, match=f"^backend={backend} cannot {lack}"):
            attend_packed(*drawn([3, 5]), **given, backend=backend)


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
