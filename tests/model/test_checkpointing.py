"""Computing activations again in backward saves memory and changes nothing."""

import torch

from .small import small_vit


def test_gradients_are_those_of_keeping_activations():
    images = torch.randn(2, 3, 24, 32)
    sides = []
    for again in (False, True):
        model = small_vit(grad_checkpointing=again, drop_path=0.3, backend="eager").train()
        torch.manual_seed(0)
        logits = model(images)
        logits.square().sum().backward()
        sides.append((logits, *(parameter.grad for parameter in model.parameters())))
    for kept, recomputed in zip(*sides, strict=True):
        torch.testing.assert_close(recomputed, kept)


def test_blocks_run_twice_in_training_and_once_in_evaluation():
    model = small_vit(grad_checkpointing=True, backend="eager")
    calls = []
    model.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    model(torch.randn(2, 3, 24, 32)).sum().backward()
    assert len(calls) == 1
    model.train()(torch.randn(2, 3, 24, 32)).sum().backward()
    assert len(calls) == 3
