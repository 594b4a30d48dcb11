"""Dropout drops as torch's does: how often, what is left, and what flows back."""

import pytest
import torch
import torch.nn.functional as F

from vitrail.model.layers import Dropout, drop

MANY = 200_000


@pytest.mark.parametrize("p", [0.1, 0.2, 0.5, 0.9])
def test_the_share_that_is_dropped_and_the_mean_of_what_is_left_are_torchs(p):
    torch.manual_seed(0)
    ones = torch.ones(MANY)
    out = Dropout(p)(ones)
    kept = out[out != 0]
    assert (out == 0).float().mean() == pytest.approx(p, abs=0.005)
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - p)), rtol=1e-4, atol=0)
    assert F.dropout(ones, p).mean() == pytest.approx(out.mean().item(), abs=0.02 / (1 - p))


def test_neighbours_are_dropped_independently():
    torch.manual_seed(0)
    gone = (Dropout(0.3)(torch.ones(MANY)) == 0).float()
    for apart in (1, 2, 3, 4):  # four of them share one random number
        both = (gone[apart:] * gone[:-apart]).mean()
        assert both == pytest.approx(0.09, abs=0.005)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7,), (3, 5, 11), (2, 0)], ids=str)
def test_gradients_flow_back_through_what_is_kept_alone(dtype, shape):
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    out = Dropout(0.4)(x)
    out.sum().backward()
    assert out.shape == shape
    assert out.dtype == dtype
    torch.testing.assert_close(out, x * x.grad)


def test_a_strided_tensor_is_dropped_value_by_value():
    torch.manual_seed(0)
    x = torch.randn(6, 4, requires_grad=True)
    out = drop(x.T, 2**15)
    assert set(torch.unique(out / x.T.detach()).tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_nothing_and_everything_are_exact(p):
    x = torch.randn(50)
    assert torch.equal(Dropout(p)(x), x * (1 - p))


def test_nearly_everything_may_be_dropped():
    assert Dropout(0.999999)(torch.ones(50)).isfinite().all()


def test_evaluation_drops_nothing():
    x = torch.randn(50)
    assert torch.equal(Dropout(0.5).eval()(x), x)
