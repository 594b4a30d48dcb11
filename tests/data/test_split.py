"""Holding images out."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from vitrail.data.split import stratified


@given(labels=st.lists(st.integers(0, 4), min_size=1, max_size=80), share=st.floats(0.01, 0.99))
def test_every_class_of_two_or_more_is_on_both_sides_in_its_share(labels, share):
    labels = torch.tensor(labels)
    kept, held = stratified(labels, share)
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(len(labels)))
    for label in labels.unique():
        count, out = int((labels == label).sum()), int((labels[held] == label).sum())
        assert abs(out - share * count) <= 1
        assert out < count
        assert out > 0 or count == 1


def test_a_share_of_nothing_holds_nothing_out():
    kept, held = stratified(torch.tensor([0, 0, 1]), 0.0)
    assert kept.tolist() == [0, 1, 2]
    assert held.tolist() == []
