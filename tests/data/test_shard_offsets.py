import numpy as np
import pytest

from big_align.data.shard_offsets import ShardOffsets

SIZES = np.array([0, 3, 0, 0, 2, 4, 0])


def test_every_number_is_the_next_example_of_the_shards_in_order():
    offsets = ShardOffsets(SIZES)
    expected = [(shard, index) for shard, size in enumerate(SIZES) for index in range(size)]
    assert offsets.count == len(expected) == 9
    assert [offsets.locate_one(number) for number in range(9)] == expected
    turned = np.arange(9)[::-1]
    shards, indexes = offsets.locate(turned)
    assert list(zip(shards.tolist(), indexes.tolist(), strict=True)) == expected[::-1]


def test_there_is_nothing_behind_the_last_example():
    for sizes in (SIZES, np.zeros(2, np.int64), np.zeros(0, np.int64)):
        offsets = ShardOffsets(sizes)
        with pytest.raises(IndexError):
            offsets.locate_one(offsets.count)


def test_places_are_spread_over_all_shards():
    offsets = ShardOffsets(np.array([3, 0, 5, 2]))
    every = [offsets.locate_one(number) for number in range(10)]
    assert offsets.spread(10) == offsets.spread(99) == offsets.spread_to_end(10) == every
    assert offsets.spread(5) == every[::2]
    assert offsets.spread_to_end(4) == [every[n] for n in (0, 3, 6, 9)]
    assert ShardOffsets(np.zeros(2, int)).spread(5) == []
    assert ShardOffsets(np.zeros(2, int)).spread_to_end(5) == []
