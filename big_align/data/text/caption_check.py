"""Checks that a source has captions at all, before a run starts."""

import numpy as np

from big_align.data import boundary, examples
from big_align.data.shard_offsets import ShardOffsets

LOOKED_AT = 16


def find_caption_fault(source: examples.Source) -> str:
    """Looks at a few examples, spread evenly, without reading images.

    Returns:
      What is wrong, in one line, if none of them has a caption that can be used; else "".
    """
    offsets = ShardOffsets(source.shard_sizes)
    count = min(offsets.count, LOOKED_AT)
    first = ""
    for number in (np.arange(count) * offsets.count // max(count, 1)).tolist():
        place = offsets.locate_one(number)
        try:
            captions, _ = boundary.read_texts(source, *place)
        except examples.BrokenExample as error:
            first = first or f"{source.name(*place)}: {error}"
            continue
        if captions:
            return ""
        first = first or f"{source.name(*place)} has none"
    if not count:
        return ""
    return f"none of {count} examples looked at has a caption that can be used ({first})"
