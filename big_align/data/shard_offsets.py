"""The shard of an example and its index there, from its number in the source's own order."""

import numpy as np
from jaxtyping import Int


class ShardOffsets:
    """The offsets of shards, which may be empty, in the order of their source."""

    def __init__(self, sizes: Int[np.ndarray, " s"]):
        self._ends = np.cumsum(sizes, dtype=np.int64)
        self._starts = self._ends - sizes
        self.count = int(self._ends[-1]) if len(sizes) else 0

    def locate(
        self, numbers: Int[np.ndarray, " n"]
    ) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """Returns the shards of examples, and their indexes in those."""
        shards = np.searchsorted(self._ends, numbers, side="right")
        return shards, numbers - self._starts[shards]

    def locate_one(self, number: int) -> tuple[int, int]:
        """Returns the shard of an example and its index there."""
        return self._list(np.array([number]))[0]

    def spread(self, most: int) -> list[tuple[int, int]]:
        """Returns the places of up to `most` examples, spread evenly: all, if there are no more."""
        count = min(self.count, most)
        return self._list(np.arange(count) * self.count // max(count, 1))

    def spread_to_end(self, most: int) -> list[tuple[int, int]]:
        """Returns what `spread` does, with the first example and the last among them."""
        count = min(self.count, most)
        return self._list(np.unique(np.linspace(0, self.count - 1, count).astype(np.int64)))

    def _list(self, numbers: Int[np.ndarray, " n"]) -> list[tuple[int, int]]:
        shards, indexes = self.locate(numbers)
        return list(zip(shards.tolist(), indexes.tolist(), strict=True))
