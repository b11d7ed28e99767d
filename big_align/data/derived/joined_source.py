"""The examples of several splits, one after the other."""

from collections.abc import Sequence

import numpy as np

from big_align.data import examples
from big_align.data.derived.split_source import key_of


class JoinedSource:
    """The shards of several sources, in order.

    Args:
      sources: sources with the same classes; at least one.
    """

    def __init__(self, sources: Sequence[examples.Source]):
        self._places = [(x, shard) for x in sources for shard in range(len(x.shard_sizes))]
        self.class_names = sources[0].class_names
        self.shard_sizes = np.concatenate([x.shard_sizes for x in sources])
        self.broken = np.concatenate([x.broken for x in sources])

    @property
    def has_keys(self) -> bool:
        """Whether the sources have keys."""
        return all(examples.has_keys(source) for source, _ in self._places)

    def read(self, shard: int, index: int) -> examples.Example:
        """Reads an example; raises BrokenExample."""
        source, own = self._places[shard]
        return source.read(own, index)

    def read_text(self, shard: int, index: int) -> tuple[list[str], tuple[int, ...]]:
        """Reads captions and labels; raises BrokenExample."""
        source, own = self._places[shard]
        return source.read_text(own, index)

    def name(self, shard: int, index: int) -> str:
        """Names an example as its source does."""
        source, own = self._places[shard]
        return source.name(own, index)

    def key(self, shard: int, index: int) -> str:
        """Returns the key of an example, or its name if its source has no keys."""
        source, own = self._places[shard]
        return key_of(source)(own, index)

    def shard_name(self, shard: int) -> str:
        """Names a shard as its source does."""
        source, own = self._places[shard]
        return source.shard_name(own)
