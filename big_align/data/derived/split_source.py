"""Examples held out of training, and the rest: a split by a hash of the keys of the examples."""

from collections.abc import Iterator

import numpy as np

from big_align.core.digests import hash_bytes
from big_align.core.errors import UserError, check_at_least
from big_align.core.nodes import Given
from big_align.data.derived.derived_source import ChosenExamples, key_of
from big_align.data.examples import Source
from big_align.data.shard_offsets import ShardOffsets

SAMPLE = 4096  # keys that show how much of a path is needed to tell examples apart
HASHES = 2**64


class SplitSource(ChosenExamples):
    """The examples of a source that are held out, or the rest.

    An example is held out if the hash of its key is small. So it stays where it is when others are
    added, when files are moved or resharded, and in another layout; examples with the same key,
    such as the rows of one image, stay together; and a larger fraction holds out the same and more.
    The key of a file is its name without folders and extension if that distinguishes examples, else
    with as many folders as it takes. A source without keys is split by the names of its examples
    (TFRecord: the file and the number of the record).

    Four bytes are kept for each example that is held out, and none for the others.

    Args:
      source: the examples.
      hold_out: the fraction of the examples that is held out, from 0 to below 1.
      held_out: whether this is the part that is held out.
      max_examples: with `held_out`, how many of its examples are used at most, those with the
        smallest hashes; the others are in neither part.
    """

    def __init__(
        self,
        source: Source,
        hold_out: float = 0.0,
        held_out: bool = False,
        max_examples: int | None = None,
    ):
        if not 0 <= hold_out < 1:
            raise UserError(f"hold_out = {hold_out} is not a fraction from 0 to below 1")
        check_at_least(1, max_examples=max_examples)
        super().__init__(source)
        self._held_out = held_out
        self._chosen, self._ends = _choose(source, hold_out, max_examples if held_out else None)
        counts = np.diff(self._ends)
        self.shard_sizes = counts if held_out else source.shard_sizes - counts
        lost = source.broken * counts // np.maximum(source.shard_sizes, 1)
        self.broken = lost if held_out else source.broken - lost
        if not self.shard_sizes.sum():
            raise _explain_nothing(source, hold_out, held_out)

    def _place(self, shard: int, index: int) -> int:
        chosen = self._chosen[self._ends[shard] : self._ends[shard + 1]]
        if self._held_out:
            return int(chosen[index])
        # The k-th held-out example has k fewer examples of the rest before it than its index.
        before = chosen.astype(np.int64) - np.arange(len(chosen))
        return index + int(np.searchsorted(before, index, side="right"))


def held_out_source(
    source: Source, hold_out: Given[float], part: str | None = None, max_examples: int | None = 5000
) -> SplitSource:
    """Makes a source of the examples that `config.data.hold_out` keeps out of training.

    Args:
      source: the source of the training data.
      hold_out: the fraction of the examples.
      part: the part of `config.data.mixture` whose examples are meant; None if there is no mixture.
      max_examples: how many of them are used at most; None for all.

    Raises:
      UserError: there are none.
    """
    return SplitSource(source, hold_out, held_out=True, max_examples=max_examples)


def _explain_nothing(source: Source, fraction: float, held_out: bool) -> UserError:
    """Says what an empty part is a part of, and what would change that."""
    keys = len({key for shard in _read_keys(source) for key in shard})
    total = int(source.shard_sizes.sum())
    which = "holds out none" if held_out else "leaves none"
    remedy = f"{'raise' if held_out else 'lower'} --config.data.hold_out"
    if keys < total:
        remedy += ", or set data.source.key, if the source has it, to a column of more keys"
    return UserError(
        f"hold_out = {fraction:g} {which} of {total} examples, which have {keys} different keys; "
        f"{remedy}"
    )


def _choose(
    source: Source, fraction: float, max_examples: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indexes of what is held out, shard by shard, and where each shard begins."""
    bound = int(fraction * HASHES)
    hashes, indexes, counts = [], [], []
    for keys in _read_keys(source):
        found = [(value, n) for n, key in enumerate(keys) if (value := _hash(key)) < bound]
        hashes.append(np.array([value for value, _ in found], np.uint64))
        indexes.append(np.array([n for _, n in found], np.uint32))
        counts.append(len(found))
    if max_examples is not None and sum(counts) > max_examples:
        largest = np.sort(np.concatenate(hashes))[max_examples - 1]
        kept = [values <= largest for values in hashes]
        indexes = [some[keep] for some, keep in zip(indexes, kept, strict=True)]
        counts = [len(some) for some in indexes]
    ends = np.cumsum([0, *counts]).astype(np.int64)
    return np.concatenate([*indexes, np.zeros(0, np.uint32)]), ends


def _hash(key: str) -> int:
    data = key.encode("utf-8", "surrogateescape")
    return int.from_bytes(hash_bytes(data), "big")


def _read_keys(source: Source) -> Iterator[Iterator[str]]:
    """Yields the keys of each shard, as short as they can be to distinguish examples."""
    key = key_of(source)
    depth = _find_depth(source) if hasattr(source, "key") else 0
    for shard, size in enumerate(source.shard_sizes.tolist()):
        yield (_shorten(key(shard, index), depth) for index in range(size))


def _find_depth(source: Source) -> int:
    """Returns how many parts of a path, from its end, distinguish most keys; 0 for all of it.

    A key need not be a path: that of a table row may be the name of the table and a number.
    Examples with the same key, such as the rows of one image, count once: they stay together.
    """
    places = ShardOffsets(source.shard_sizes).spread_to_end(SAMPLE)
    keys = {source.key(*place) for place in places}
    deepest = max((key.count("/") + 1 for key in keys), default=1)
    for depth in range(1, deepest + 1):
        if 2 * len({_shorten(key, depth) for key in keys}) > len(keys):
            return depth
    return 0


def _shorten(key: str, depth: int) -> str:
    """Returns the last parts of a path without its extensions; all of it for a depth of 0."""
    if not depth:
        return key
    *folders, name = key.split("/")[-depth:]
    return "/".join([*folders, name.partition(".")[0] or name])
