"""Dropout and drop path act in training alone."""

import pytest
import torch

from .small import ON_CPU, small_vit

NOISES = [
    {"dropout": 0.3},
    {"attention_dropout": 0.3},
    {"drop_path": 0.5},
    {"dropout": 0.1, "attention_dropout": 0.1, "drop_path": 0.2},
]

each_noise = pytest.mark.parametrize("noise", NOISES, ids=str)


@each_noise
def test_eval_is_bit_identical_and_as_if_there_were_no_noise(noise):
    images = torch.randn(4, 3, 24, 32)
    noisy = small_vit(**noise)
    assert torch.equal(noisy(images), noisy(images))
    assert torch.equal(noisy(images), small_vit()(images))


@each_noise
def test_training_differs_from_call_to_call_and_repeats_with_the_seed(noise):
    images = torch.randn(4, 3, 24, 32)
    model = small_vit(**noise).train()
    torch.manual_seed(1)
    first, second = model(images), model(images)
    torch.manual_seed(1)
    assert not torch.equal(first, second)
    assert torch.equal(first, model(images))


def test_drop_path_grows_from_nothing_to_its_value_with_depth():
    model = small_vit(depth=5, drop_path=0.4)
    rates = [block.drop_path1.drop_prob for block in model.blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    assert small_vit(depth=1, drop_path=0.4).blocks[0].drop_path1.drop_prob == 0.0


@pytest.mark.parametrize("backend", ON_CPU)
def test_eval_is_the_same_on_every_backend(backend):
    images = torch.randn(2, 3, 24, 32)
    expected = small_vit(backend="reference")(images)
    out = small_vit(backend=backend, dropout=0.3, attention_dropout=0.5)(images)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)
