"""In training alone: dropout and drop path, and activations that are computed again."""

import pytest
import torch

from .small import ON_CPU, logits_and_gradients, small_vit

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
    for other in (noisy, small_vit()):
        assert torch.equal(noisy(images), other(images))


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


def test_gradients_of_activations_computed_again_are_those_of_keeping_them():
    images = torch.randn(2, 3, 24, 32)
    sides = []
    for again in (False, True):
        model = small_vit(grad_checkpointing=again, drop_path=0.3, backend="eager").train()
        torch.manual_seed(0)
        sides.append(logits_and_gradients(model, images))
    torch.testing.assert_close(*sides)


def test_blocks_that_are_computed_again_run_twice_in_training_and_once_in_evaluation():
    model = small_vit(grad_checkpointing=True, backend="eager")
    calls = []
    model.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    model(torch.randn(2, 3, 24, 32)).sum().backward()
    assert len(calls) == 1
    model.train()(torch.randn(2, 3, 24, 32)).sum().backward()
    assert len(calls) == 3
