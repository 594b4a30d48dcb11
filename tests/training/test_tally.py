import pytest
import torch
import torch.nn.functional as F

from vitrail.training.tally import Tally

from .reading import Readings


def tally(logits, labels, sizes):
    counted = Tally(logits.shape[1])
    for batch, truth in zip(logits.split(sizes), labels.split(sizes), strict=True):
        counted.update(batch, truth)
    return counted.compute()


@pytest.mark.parametrize("sizes", [[4, 4, 2], 1, 3, 10, 64])
def test_ten_images_with_eight_right_are_080_in_batches_of_any_size(sizes):
    labels = torch.arange(10) % 3
    logits = torch.randn(10, 3) + 20 * F.one_hot((labels + (torch.arange(10) >= 8)) % 3, 3)
    found = tally(logits, labels, sizes)
    assert found["acc"] == 0.8
    assert found["count"] == 10
    assert found["loss"] == pytest.approx(F.cross_entropy(logits.double(), labels).item(), rel=1e-6)


def test_a_long_sum_of_losses_does_not_lose_digits():
    logits, labels = torch.tensor([[0.0, 2.0]]), torch.tensor([0])
    counted = Tally(2)
    for _ in range(5_000):
        counted.update(logits, labels)
    one = F.cross_entropy(logits, labels).item()
    assert counted.compute()["loss"] == pytest.approx(one, rel=1e-9)


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_with_five_classes_or_fewer_nothing_is_called_top_5(classes):
    found = tally(torch.randn(8, classes), torch.arange(8) % classes, 3)
    assert "acc_top5" not in found


def test_top_5_counts_the_images_whose_class_is_among_the_best_five():
    logits = torch.arange(7.0).repeat(7, 1)  # best to worst: 6, 5, 4, 3, 2 | 1, 0
    found = tally(logits, torch.arange(7), 4)
    assert found["acc"] == 1 / 7
    assert found["acc_top5"] == 5 / 7


def test_rows_of_the_confusion_matrix_are_true_classes_and_columns_predicted_ones():
    logits = F.one_hot(torch.tensor([1, 1, 2, 0]), 3).float()
    found = tally(logits, torch.tensor([0, 0, 2, 2]), 2)
    assert found["confusion"].tolist() == [[0, 2, 0], [0, 0, 0], [1, 0, 1]]


def test_counting_a_batch_reads_no_value():
    counted, logits, labels = Tally(7), torch.randn(8, 7), torch.arange(8) % 7
    with Readings() as readings:
        counted.update(logits, labels)
    assert not readings.stacks
