import pytest
import torch
import torch.nn.functional as F

from vitrail.training.metrics import ClassificationMetrics, RunningMeans


def test_a_long_sum_of_losses_does_not_lose_digits():
    logits, labels = torch.tensor([[0.0, 2.0]]), torch.tensor([0])
    counted = ClassificationMetrics(2)
    for _ in range(5_000):
        counted.update(logits, labels)
    one = F.cross_entropy(logits, labels).item()
    assert counted.compute()["loss"] == pytest.approx(one, rel=1e-9)


def test_top_5_counts_the_images_whose_class_is_among_the_best_five():
    logits = torch.arange(7.0).repeat(7, 1)  # best to worst: 6, 5, 4, 3, 2 | 1, 0
    metrics = ClassificationMetrics(7)
    for batch, labels in zip(logits.split(4), torch.arange(7).split(4), strict=True):
        metrics.update(batch, labels)
    found = metrics.compute()
    assert (found["acc"], found["acc_top5"]) == (1 / 7, 5 / 7)


def test_counting_a_batch_reads_no_value(readings):
    counted, logits, labels = ClassificationMetrics(7), torch.randn(8, 7), torch.arange(8) % 7
    with readings:
        counted.update(logits, labels)
    assert not readings.stacks


def test_a_mean_is_over_images_and_begins_anew_once_it_is_taken():
    values, means = torch.arange(7.0), RunningMeans()
    for batch in values.split(3):
        means.add("loss", batch.mean(), len(batch))
    mean, images = means.take()["loss"]
    assert (mean.item(), images) == (pytest.approx(values.mean().item()), 7)
    assert means.take() == {}
    means.add("loss", torch.tensor(5.0), 2)
    means.add("acc", torch.tensor(0.5), 4)
    assert means.take() == {"loss": (5.0, 2), "acc": (0.5, 4)}
