"""The gate lets through what computes attention, and nothing else."""

from dataclasses import replace

import pytest
import torch

from vitrail.attention import Grid, Mask, backends
from vitrail.attention.backends import EVERYWHERE, Backend, Capability, Request
from vitrail.attention.patterns import GridPattern
from vitrail.attention.patterns.full import Full
from vitrail.attention.selection.gate import Exact, FailedGate, measure_error, prove

VIT_TINY = Request("cpu", torch.bfloat16, batch=64, heads=3, queries=197, keys=197, width=64)
SMALL = replace(VIT_TINY, dtype=torch.float32, queries=15, keys=15, width=8)
KEYS, DENSE = frozenset({"padding"}), frozenset({"mask"})


class Broken(Backend):
    """The formula, with something wrong done to its inputs or its output."""

    name = "broken"
    capabilities = {EVERYWHERE: Capability()}

    def __init__(self, before=lambda **call: call, after=lambda out: out):
        self.before, self.after = before, after

    def __call__(self, q, k, v, **given):
        call = self.before(q=q, k=k, v=v, **given)
        return self.after(backends.load("reference")(**call))


class TimesSixtyFive(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 65 * gradient


def wrong(**changes):
    """A backend that computes something else: each change is a function of the call's argument."""
    return Broken(
        before=lambda **call: call | {n: change(call[n]) for n, change in changes.items()}
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("masks", [frozenset(), KEYS, DENSE, KEYS | DENSE], ids=sorted)
@pytest.mark.parametrize("bias", [{}, {"bias": True}, {"bias": True, "bias_grad": True}], ids=str)
@pytest.mark.parametrize("name", backends.names())
def test_every_kernel_that_takes_a_request_passes(name, bias, masks, dtype):
    request = replace(SMALL, dtype=dtype, masks=masks, **bias)
    if backends.lacks(name, request):
        request = replace(request, backward=False, bias_grad=False)
    if backends.lacks(name, request):
        assert name not in backends.permitted(request)
        return
    result = prove(request, backends.load(name))
    assert result.passed
    learned = {"dq", "dk", "dv"} if request.backward else set()
    learned |= {"dbias"} if request.bias_grad else set()
    assert set(result.errors) == {"out"} | learned


@pytest.mark.parametrize(
    "backend, masks, worst",
    [
        (wrong(scale=lambda scale: 1.1 * scale), frozenset(), "d?[a-z]+"),
        (wrong(q=TimesSixtyFive.apply), frozenset(), "dq"),
        (wrong(k=TimesSixtyFive.apply), frozenset(), "dk"),
        (wrong(v=TimesSixtyFive.apply), frozenset(), "dv"),
        (wrong(v=lambda v: v.detach() + 0 * v), frozenset(), "dv"),
        (wrong(mask=lambda mask: Mask()), KEYS, "d?[a-z]+"),
        (wrong(mask=lambda mask: Mask(valid=~mask.valid)), KEYS, "d?[a-z]+"),
        (wrong(mask=lambda mask: Mask(allowed=mask.allowed.mT)), DENSE, "d?[a-z]+"),
        (Broken(after=lambda out: out * float("nan")), frozenset(), "out"),
        (Broken(after=lambda out: out + 1e-3), KEYS, "out"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_what_computes_something_else_fails_by_the_tensor_that_shows_it(
    backend, masks, worst, dtype
):
    if dtype == torch.float16 and backend.after(torch.zeros(())) != 0:
        pytest.skip("fp16 rounds by as much")
    request = replace(SMALL, dtype=dtype, masks=masks)
    with pytest.raises(FailedGate, match=rf"^backend=broken fails the gate: {worst} is \S+ from"):
        prove(request, backend)


def test_a_dead_row_that_is_not_zero_fails():
    class Mean(Broken):
        def __call__(self, q, k, v, *, mask, **given):
            out = super().__call__(q, k, v, mask=mask, **given)
            return torch.where(mask.valid.any(-1)[:, None, None, None], out, v.mean(-2, True))

    assert measure_error(Mean(), Exact.of(replace(SMALL, masks=KEYS))).worst in ("out", "dv")
    with pytest.raises(FailedGate):
        prove(replace(SMALL, masks=KEYS), Mean())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_both_measures_are_told_whichever_of_them_decides(dtype):
    request = replace(SMALL, dtype=dtype, backward=False)
    known = Exact.of(request)
    result = measure_error(Broken(after=lambda out: 1.5 * out), known)
    largest = 0.5 * known.exact["out"].abs().max().item()
    assert result.relative["out"] == pytest.approx(0.5, abs=0.01)
    assert result.largest["out"] == pytest.approx(largest, rel=0.02)
    decides = (result.largest if dtype == torch.float32 else result.relative)["out"]
    assert result.errors["out"] == decides
    assert str(result).startswith(f"out is {decides:.1e} from float64 and ")


def test_a_bias_without_its_gradient_fails():
    backend = wrong(bias=lambda bias: bias.detach() + 0 * bias)
    with pytest.raises(FailedGate, match="dbias"):
        prove(replace(SMALL, bias=True, bias_grad=True), backend)


def test_a_rule_without_a_tensor_is_judged_too():
    placed = GridPattern(Full(), Grid(3, 5))
    request = replace(SMALL, masks=frozenset({"pattern"}), pattern=placed)
    assert prove(request, backends.load("eager")).passed


@pytest.mark.parametrize("name", ["eager", "sdpa_flash", "sdpa_math"])
@pytest.mark.parametrize("masks", [frozenset(), KEYS], ids=sorted)
def test_three_samples_of_a_vit_tiny_are_proved_and_no_random_number_is_used_up(name, masks):
    before = torch.get_rng_state()
    known = Exact.of(replace(VIT_TINY, masks=masks))
    assert known.sample.q.shape == (3, 3, 197, 64)
    assert measure_error(backends.load(name), known).passed
    assert torch.equal(torch.get_rng_state(), before)
