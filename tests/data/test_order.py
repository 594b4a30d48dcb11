"""Who gets which images."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.data.loader import Order

WORLDS = st.integers(1, 4)
SIZES = st.integers(1, 9)


def epoch(order):
    return [indices.tolist() for _, indices in order]


@given(count=st.integers(4, 60), batch_size=SIZES, world=WORLDS)
def test_evaluation_sees_every_image_exactly_once_in_as_many_batches_everywhere(
    count, batch_size, world
):
    shards = [
        epoch(Order(count, batch_size=batch_size, seed=None, rank=rank, world=world))
        for rank in range(world)
    ]
    seen = [index for shard in shards for batch in shard for index in batch]
    assert sorted(seen) == list(range(count))
    assert len({len(shard) for shard in shards}) == 1
    assert all(0 < len(batch) <= batch_size + 1 for shard in shards for batch in shard)
    assert len(shards[0]) == len(
        Order(count, batch_size=batch_size, seed=None, rank=0, world=world)
    )


@given(count=st.integers(4, 60), batch_size=SIZES, world=WORLDS, number=st.integers(0, 3))
def test_training_deals_out_full_batches_of_different_images_and_as_many_everywhere(
    count, batch_size, world, number
):
    shards = []
    for rank in range(world):
        order = Order(count, batch_size=batch_size, seed=5, rank=rank, world=world)
        order.set_epoch(number)
        shards.append(epoch(order))
        assert len(order) == len(shards[-1]) > 0
    sizes = {len(batch) for shard in shards for batch in shard}
    assert sizes == {min(batch_size, count // world)}
    seen = [index for shard in shards for batch in shard for index in batch]
    assert len(set(seen)) == len(seen)
    assert len({len(shard) for shard in shards}) == 1


def test_a_set_smaller_than_a_batch_is_one_smaller_batch():
    assert [sorted(batch) for batch in epoch(Order(3, batch_size=8, seed=0, rank=0, world=1))] == [
        [0, 1, 2]
    ]


def test_processes_together_walk_through_the_order_of_one():
    alone = Order(24, batch_size=6, seed=0, rank=0, world=1)
    pair = [epoch(Order(24, batch_size=3, seed=0, rank=rank, world=2)) for rank in range(2)]
    for batch, first, second in zip(epoch(alone), *pair, strict=True):
        assert sorted(batch) == sorted(first + second)


def test_the_order_is_a_function_of_seed_and_epoch():
    def order(seed, number):
        made = Order(50, batch_size=10, seed=seed, rank=0, world=1)
        made.set_epoch(number)
        return np.concatenate(epoch(made)).tolist()

    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(1, 3)
    assert order(1, 2) != order(2, 2)


def test_what_a_partial_batch_would_hold_changes_between_epochs():
    order = Order(10, batch_size=4, seed=0, rank=0, world=1)
    left_out = set()
    for number in range(8):
        order.set_epoch(number)
        left_out.add(frozenset(range(10)) - {index for batch in epoch(order) for index in batch})
    assert len(left_out) > 4


def test_fewer_images_than_processes_are_refused():
    with pytest.raises(ValueError, match=r"2 images do not go round 3 processes; start 2 or fewer"):
        Order(2, batch_size=4, seed=None, rank=0, world=3)
