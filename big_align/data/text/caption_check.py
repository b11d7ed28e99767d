"""Checks that a source has captions at all, before a run starts."""

from big_align.data import boundary, examples
from big_align.data.shard_offsets import ShardOffsets

LOOKED_AT = 16


def find_caption_fault(source: examples.Source) -> str:
    """Looks at a few examples, spread evenly, without reading images.

    Returns:
      What is wrong, in one line, if none of them has a caption that can be used; else "".
    """
    places, first = ShardOffsets(source.shard_sizes).spread(LOOKED_AT), ""
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
