"""A folder of embeddings, as big_align.tools.embed writes it."""

import pathlib
from collections.abc import Sequence

import numpy as np

from big_align.data.precomputed import shard_files
from big_align.data.precomputed.shard_files import EMBEDDINGS, Shard


def write_embeddings(
    folder: pathlib.Path, values: np.ndarray, counts: Sequence[int], keys: Sequence[str] = ()
) -> pathlib.Path:
    """Writes rows in shards of these counts; rows of zeros have no key."""
    keys = keys or [f"key {number}" for number in range(len(values))]
    shards = [Shard(f"shard-{i}.tar", f"f{i}", count) for i, count in enumerate(counts)]
    index = {
        "dim": values.shape[1],
        "dtype": str(values.dtype),
        "unit_length": False,
        "shards": [shard._asdict() for shard in shards],
        "made_by": {"weights": "none"},
    }
    shard_files.claim_folder(folder, index, write=True)
    first = 0
    for shard in shards:
        rows = values[first : first + shard.count]
        there = zip(keys[first : first + shard.count], rows, strict=True)
        lines = shard_files.join_keys(key if row.any() else "" for key, row in there)
        if shard.count:
            shard_files.write_shard(folder, shard, EMBEDDINGS, rows, lines)
        first += shard.count
    return folder
