import math

import pytest
import torch
import torch.nn.functional as F

from vitrail.training.mixing import Mixing


@pytest.fixture
def lambda_is_03(monkeypatch):
    """Every Beta distribution draws 0.3."""
    draw = torch.tensor([0.3])
    monkeypatch.setattr(torch.distributions.Beta, "sample", lambda self, shape: draw)


@pytest.mark.usefixtures("lambda_is_03")
def test_mixed_and_smoothed_targets_are_what_the_papers_say():
    mixing = Mixing(mixup=0.8, cutmix=None, classes=10)
    _, targets = mixing(torch.randn(2, 3, 4, 6), torch.tensor([0, 1]), None)
    logits = torch.eye(10)  # the loss is linear in the targets: read them off, one class at a time
    losses = [F.cross_entropy(1e4 * row[None], targets[:1], label_smoothing=0.1) for row in logits]
    expected = torch.tensor([0.28, 0.64] + [0.01] * 8)
    torch.testing.assert_close(1 - torch.stack(losses) / 1e4, expected, atol=1e-4, rtol=0)
    loss = F.cross_entropy(torch.zeros(2, 10), targets, label_smoothing=0.1)
    assert loss.item() == pytest.approx(math.log(10), rel=1e-6), "equal logits give ln 10"


@pytest.mark.usefixtures("lambda_is_03")
def test_mixup_blends_pixels_by_the_same_share_as_labels():
    images, labels = torch.randn(3, 3, 4, 6), torch.tensor([2, 0, 1])
    mixed, targets = Mixing(mixup=1.0, cutmix=0.0, classes=3)(images, labels, None)
    torch.testing.assert_close(mixed, 0.3 * images + 0.7 * images.roll(1, 0))
    torch.testing.assert_close(targets[0], torch.tensor([0.0, 0.7, 0.3]))


def test_cutmix_gives_each_label_the_share_of_its_pixels():
    torch.manual_seed(0)
    images = torch.arange(2.0)[:, None, None, None].expand(2, 3, 8, 12)
    mixed, targets = Mixing(mixup=None, cutmix=1.0, classes=2)(images, torch.tensor([0, 1]), None)
    torch.testing.assert_close(mixed[0].mean(), targets[0, 1])


def test_with_both_each_batch_takes_one_of_them():
    torch.manual_seed(0)
    mixing = Mixing(mixup=1.0, cutmix=1.0, classes=2)
    images = torch.arange(2.0)[:, None, None, None].expand(2, 3, 8, 12)
    pasted = [
        len(mixing(images, torch.tensor([0, 1]), None)[0][0].unique()) == 2 for _ in range(40)
    ]
    assert 5 < sum(pasted) < 35


@pytest.mark.parametrize("mixup, cutmix, count", [(None, None, 4), (0.0, 0.0, 4), (0.8, 1.0, 1)])
def test_a_batch_of_one_and_one_without_an_alpha_stay_as_they_are(mixup, cutmix, count):
    images, labels = torch.randn(count, 3, 4, 6), torch.arange(count)
    mixing = Mixing(mixup=mixup, cutmix=cutmix, classes=4)
    mixed, targets = mixing(images, labels, None if mixup else torch.ones(count, 4, 6).bool())
    assert mixed is images
    assert targets is labels


def test_padded_batches_are_refused_in_one_line():
    mixing = Mixing(mixup=0.8, cutmix=None, classes=3)
    with pytest.raises(ValueError, match="this batch is padded; use classifier") as refusal:
        mixing(torch.randn(2, 3, 4, 6), torch.arange(2), torch.ones(2, 4, 6).bool())
    assert "\n" not in str(refusal.value)


def test_a_negative_alpha_is_refused():
    with pytest.raises(ValueError, match=r"classifier.cutmix must be >= 0, got -1"):
        Mixing(mixup=None, cutmix=-1, classes=3)
