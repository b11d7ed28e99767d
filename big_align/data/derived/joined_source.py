"""The examples of several splits, one after the other."""

from collections.abc import Sequence

import numpy as np

from big_align.data.derived.derived_source import DerivedSource
from big_align.data.examples import Source


class JoinedSource(DerivedSource):
    """The shards of several sources, in order.

    Args:
      sources: sources with the same classes; at least one.
    """

    def __init__(self, sources: Sequence[Source]):
        super().__init__(sources)
        self._places = [(x, shard) for x in sources for shard in range(len(x.shard_sizes))]
        self.shard_sizes = np.concatenate([x.shard_sizes for x in sources])
        self.broken = np.concatenate([x.broken for x in sources])

    def _find(self, shard: int, index: int) -> tuple[Source, int, int]:
        return *self._places[shard], index
