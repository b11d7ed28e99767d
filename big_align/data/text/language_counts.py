"""Counts how many captions of a source are in which language."""

import collections

from big_align.data import boundary, examples
from big_align.data.shard_offsets import ShardOffsets
from big_align.errors import UserError

LOOKED_AT = 16_384


def count_languages(source: examples.Source, most: int = LOOKED_AT) -> collections.Counter:
    """Counts the captions of each language, without reading images.

    Args:
      source: the examples; broken ones are skipped.
      most: how many of them are looked at, spread evenly.

    Returns:
      How many captions have each language, in the order in which examples have them; captions
      without a language are not counted.
    """
    return _count(source, most)[0]


def count_mixed_languages(source: examples.Source) -> collections.Counter:
    """Counts the captions of each language, for sources with several languages per example.

    The result is that of `count_languages`.

    Raises:
      UserError: captions have no languages, or no example has captions in two.
    """
    counts, mixed = _count(source, LOOKED_AT)
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


def _count(source: examples.Source, most: int) -> tuple[collections.Counter, int]:
    """Returns captions by language, and how many examples have several languages."""
    counts: collections.Counter = collections.Counter()
    mixed = 0
    places = ShardOffsets(source.shard_sizes).spread(most)
    for _, texts in boundary.read_many_texts(source, places):
        if not isinstance(texts, examples.BrokenExample):
            found = list(filter(None, map(examples.language_of, texts[0])))
            counts.update(found)
            mixed += len(set(found)) > 1
    return counts, mixed
