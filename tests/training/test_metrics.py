import pytest
import torch
import torch.nn.functional as F

from vitrail.training.metrics import ClassificationMetrics, RunningMeans


def counted(logits, labels, sizes):
    metrics = ClassificationMetrics(logits.shape[1])
    for batch, truth in zip(logits.split(sizes), labels.split(sizes), strict=True):
        metrics.update(batch, truth)
    return metrics.compute()


def test_a_long_sum_of_losses_does_not_lose_digits():
    logits, labels = torch.tensor([[0.0, 2.0]]), torch.tensor([0])
    counted = ClassificationMetrics(2)
    for _ in range(5_000):
        counted.update(logits, labels)
    one = F.cross_entropy(logits, labels).item()
    assert counted.compute()["loss"] == pytest.approx(one, rel=1e-9)


def test_top_5_counts_the_images_whose_class_is_among_the_best_five():
    logits = torch.arange(7.0).repeat(7, 1)  # best to worst: 6, 5, 4, 3, 2 | 1, 0
    found = counted(logits, torch.arange(7), 4)
    assert found["acc"] == 1 / 7
    assert found["acc_top5"] == 5 / 7


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
    assert means.take() == {"loss": (torch.tensor(5.0), 2)}


def test_each_has_its_own_images():
    means = RunningMeans()
    means.add("loss", torch.tensor(1.0), 4)
    means.add("loss", torch.tensor(2.0), 4)
    means.add("acc", torch.tensor(0.5), 4)
    assert {name: images for name, (_, images) in means.take().items()} == {"loss": 8, "acc": 4}
