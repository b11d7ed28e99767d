"""The order in which examples are visited, and the random numbers of each position."""

import functools
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int

from big_align.core.errors import check_at_least
from big_align.data.shard_offsets import ShardOffsets

MASK = 2**64 - 1


class PositionRandom:
    """SplitMix64 (Steele, Lea & Flood 2014): made and sent to another process in a microsecond."""

    __slots__ = ("_state",)

    def __init__(self, seed: int, position: int):
        # two rounds of mixing, so that streams of neighboring seeds or positions are not shifted
        # copies of each other
        self._state = _mix(_mix(seed & MASK) ^ (position & MASK))

    def random(self) -> float:
        """Returns a number in [0, 1)."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & MASK
        return (_mix(self._state) >> 11) * 2.0**-53

    def split(self, number: int) -> "PositionRandom":
        """Returns the stream of a number that begins here; this one does not move on."""
        return PositionRandom(self._state, number)


def _mix(bits: int) -> int:
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
    return bits ^ (bits >> 31)


class Shuffle:
    """An endless stream of examples in which every epoch is another permutation.

    In each epoch the shards are permuted and laid end to end, the line is cut into windows of
    nearly equal size, and each window is permuted. So any position is found without replaying those
    before it, only a few shards are read at a time, and memory grows with the number of shards and
    the window but not with the number of examples. A window that holds all examples gives a full
    shuffle.
    """

    def __init__(self, shard_sizes: Int[np.ndarray, " s"], seed: int, window: int = 2**17):
        self.num_examples = int(shard_sizes.sum())
        if not self.num_examples:
            raise ValueError("an order needs at least one example, and the source has none")
        check_at_least(1, window=window)
        if seed < 0:
            raise ValueError(f"seed is {seed}; it must not be negative")
        self._sizes = shard_sizes
        self._seed = seed
        self._num_windows = -(-self.num_examples // window)
        self._shards = functools.lru_cache(maxsize=4)(self._permute_shards)
        self._window = functools.lru_cache(maxsize=8)(self._permute_window)

    def __call__(
        self, positions: Int[np.ndarray, " b"]
    ) -> tuple[Int[np.ndarray, " b"], Int[np.ndarray, " b"], Int[np.ndarray, " b"]]:
        """Returns the epoch, the shard and the index in the shard at positions of the stream."""
        epochs, ranks = np.divmod(np.asarray(positions, np.int64), self.num_examples)
        # window k covers the ranks from k * n // windows, so this is the window of a rank
        windows = ((ranks + 1) * self._num_windows - 1) // self.num_examples
        shards = np.empty_like(ranks)
        indexes = np.empty_like(ranks)
        for epoch, window in set(zip(epochs.tolist(), windows.tolist(), strict=True)):
            here = (epochs == epoch) & (windows == window)
            start, permutation = self._window(epoch, window)
            shuffled = start + permutation[ranks[here] - start].astype(np.int64)
            permuted, offsets = self._shards(epoch)
            slots, indexes[here] = offsets.locate(shuffled)
            shards[here] = permuted[slots]
        return epochs, shards, indexes

    def _permute_shards(self, epoch: int) -> tuple[np.ndarray, ShardOffsets]:
        permuted = _permutation(len(self._sizes), self._seed, 0, epoch)
        return permuted, ShardOffsets(self._sizes[permuted])

    def _permute_window(self, epoch: int, window: int) -> tuple[int, np.ndarray]:
        start, end = (
            edge * self.num_examples // self._num_windows for edge in (window, window + 1)
        )
        return start, _permutation(end - start, self._seed, 1, epoch, window).astype(np.int32)


def substitutes(position: int, num_examples: int, batch_size: int) -> Iterator[int]:
    """Yields the positions of the epoch that may replace one, starting half an epoch away.

    They are whole batches away, so that no two positions of a batch share one and none is itself in
    the batch: no process has to know what another has found broken. If a batch has more than half
    the data, there is no such batch, and the next positions follow.
    """
    epoch_start = position - position % num_examples
    stride, count = batch_size, num_examples // batch_size
    if count == 1:
        stride, count = 1, num_examples
    for k in range(count):
        jump = (count // 2 + k) % count
        if jump:
            yield epoch_start + (position + jump * stride) % num_examples


def _permutation(size: int, *key: int) -> np.ndarray:
    """Sorts raw bits: NumPy promises that these never change, unlike `Generator.permutation`."""
    bits = np.random.Philox(np.random.SeedSequence(key)).random_raw(size)
    return np.argsort(bits, kind="stable")
