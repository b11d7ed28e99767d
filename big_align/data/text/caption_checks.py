"""What captions a source has, found by reading some: none at all, or in which languages."""

import collections

from big_align.core.errors import UserError
from big_align.data import boundary, examples
from big_align.data.shard_offsets import ShardOffsets

FEW, MANY = 16, 16_384  # examples that are looked at, for faults and for languages


def find_caption_fault(source: examples.Source) -> str:
    """Says in a line what is wrong if none of a few examples has a usable caption; else ""."""
    places, first = ShardOffsets(source.shard_sizes).spread(FEW), ""
    for place in places:
        try:
            if boundary.read_texts(source, *place)[0]:
                return ""
            told = " has none"
        except examples.BrokenExample as error:
            told = f": {error}"
        first = first or f"{source.name(*place)}{told}"
    if not places:
        return ""
    return f"none of {len(places)} examples looked at has a caption that can be used ({first})"


def count_languages(source: examples.Source) -> collections.Counter:
    """Counts captions by language, in order of appearance, in up to `MANY` examples."""
    return _count(source)[0]


def count_mixed_languages(source: examples.Source) -> collections.Counter:
    """Counts languages as `count_languages` does; UserError if no example has captions in two."""
    counts, mixed = _count(source)
    if not counts:
        raise UserError(
            "language_temperature draws the languages of captions, and the source gives none: name "
            "them in its field `caption`, as in json.{en,de}, or leave language_temperature out"
        )
    if not mixed:
        listed = ", ".join(sorted(counts))
        raise UserError(
            "language_temperature draws among the languages of an example, and no example that was "
            f"looked at has captions in two ({listed}): leave it out. Examples in one language "
            "each are mixed by weight (data.mixture)"
        )
    return counts


def _count(source: examples.Source) -> tuple[collections.Counter, int]:
    """Returns captions by language, and how many examples have several languages."""
    counts: collections.Counter = collections.Counter()
    mixed = 0
    places = ShardOffsets(source.shard_sizes).spread(MANY)
    for _, texts in boundary.read_many_texts(source, places):
        if not isinstance(texts, examples.BrokenExample):
            found = list(filter(None, map(examples.language_of, texts[0])))
            counts.update(found)
            mixed += len(set(found)) > 1
    return counts, mixed
