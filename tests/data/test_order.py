"""Who gets which images: splits, shards and batches."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitrail.data.loader import Order
from vitrail.data.split import stratified

WORLDS = st.integers(1, 4)
SIZES = st.integers(1, 9)


def epoch(order):
    return [indices.tolist() for _, indices in order]


def shards_of(count, batch_size, world, seed, number=0):
    """The batches of every process; all have as many."""
    orders = [
        Order(count, batch_size=batch_size, seed=seed, rank=rank, world=world)
        for rank in range(world)
    ]
    for order in orders:
        order.set_epoch(number)
    shards = [epoch(order) for order in orders]
    assert {len(shard) for shard in shards} == {len(order) for order in orders} != {0}
    assert len({len(shard) for shard in shards}) == 1
    return shards


@given(count=st.integers(4, 60), batch_size=SIZES, world=WORLDS)
def test_evaluation_sees_every_image_exactly_once_in_as_many_batches_everywhere(
    count, batch_size, world
):
    batches = [batch for shard in shards_of(count, batch_size, world, None) for batch in shard]
    assert sorted(index for batch in batches for index in batch) == list(range(count))
    assert all(0 < len(batch) <= batch_size + 1 for batch in batches)


@given(count=st.integers(4, 60), batch_size=SIZES, world=WORLDS, number=st.integers(0, 3))
def test_training_deals_out_full_batches_of_different_images_and_as_many_everywhere(
    count, batch_size, world, number
):
    batches = [batch for shard in shards_of(count, batch_size, world, 5, number) for batch in shard]
    assert {len(batch) for batch in batches} == {min(batch_size, count // world)}
    seen = [index for batch in batches for index in batch]
    assert len(set(seen)) == len(seen)


def test_a_set_smaller_than_a_batch_is_one_smaller_batch():
    (batch,) = epoch(Order(3, batch_size=8, seed=0, rank=0, world=1))
    assert sorted(batch) == [0, 1, 2]


def test_processes_together_walk_through_the_order_of_one():
    alone = Order(24, batch_size=6, seed=0, rank=0, world=1)
    pair = [epoch(Order(24, batch_size=3, seed=0, rank=rank, world=2)) for rank in range(2)]
    for batch, first, second in zip(epoch(alone), *pair, strict=True):
        assert sorted(batch) == sorted(first + second)


def test_the_order_is_a_function_of_seed_and_epoch():
    first, again, later, other = (
        shards_of(50, 10, 1, seed, number) for seed, number in ((1, 2), (1, 2), (1, 3), (2, 2))
    )
    assert first == again
    assert later != first != other


def test_what_a_partial_batch_would_hold_changes_between_epochs():
    epochs = [shards_of(10, 4, 1, 0, number)[0] for number in range(8)]
    left_out = {frozenset(range(10)).difference(*batches) for batches in epochs}
    assert len(left_out) > 4


def test_fewer_images_than_processes_are_refused():
    with pytest.raises(ValueError, match=r"3 processes need 3 images, got 2; start 2 at most"):
        Order(2, batch_size=4, seed=None, rank=0, world=3)


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
