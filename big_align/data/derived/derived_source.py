"""Sources whose examples are those of other sources, under their names."""

from collections.abc import Callable, Sequence

import numpy as np

from big_align.data.examples import Example, Source, has_keys


def key_of(source: Source) -> Callable[[int, int], str]:
    """Returns what gives the key of an example, or its name if the source has no keys."""
    return source.key if has_keys(source) else source.name


class DerivedSource:
    """Examples of other sources; `_find` says which one is where."""

    def __init__(self, sources: Sequence[Source]):
        self._sources = tuple(sources)
        self.class_names = self._sources[0].class_names

    @property
    def has_keys(self) -> bool:
        """Whether the sources have keys."""
        return all(map(has_keys, self._sources))

    def read(self, shard: int, index: int) -> Example:
        source, *place = self._find(shard, index)
        return source.read(*place)

    def read_text(self, shard: int, index: int) -> tuple[list[str], tuple[int, ...]]:
        source, *place = self._find(shard, index)
        return source.read_text(*place)

    def name(self, shard: int, index: int) -> str:
        source, *place = self._find(shard, index)
        return source.name(*place)

    def key(self, shard: int, index: int) -> str:
        """Returns the key of an example, or its name if its source has no keys."""
        source, *place = self._find(shard, index)
        return key_of(source)(*place)

    def shard_name(self, shard: int) -> str:
        source, own, _ = self._find(shard, 0)
        return source.shard_name(own)

    def _find(self, shard: int, index: int) -> tuple[Source, int, int]:
        """Returns the source of an example, its shard there and its index."""
        raise NotImplementedError


class ChosenExamples(DerivedSource):
    """Some examples of each shard of a source; `_place` says which ones."""

    def __init__(self, source: Source):
        super().__init__([source])
        self._source = source

    def shard_name(self, shard: int) -> str:
        return self._source.shard_name(shard)

    def _find(self, shard: int, index: int) -> tuple[Source, int, int]:
        return self._source, shard, self._place(shard, index)

    def _place(self, shard: int, index: int) -> int:
        """Returns the index of an example in the shard of the source."""
        raise NotImplementedError


class JoinedSource(DerivedSource):
    """The shards of several sources with the same classes, in order."""

    def __init__(self, sources: Sequence[Source]):
        super().__init__(sources)
        self._places = [(x, shard) for x in sources for shard in range(len(x.shard_sizes))]
        self.shard_sizes = np.concatenate([x.shard_sizes for x in sources])
        self.broken = np.concatenate([x.broken for x in sources])

    def _find(self, shard: int, index: int) -> tuple[Source, int, int]:
        return *self._places[shard], index
