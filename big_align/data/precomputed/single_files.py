"""A folder of embeddings as one file, for other programs: `.npy` and its keys, or Parquet."""

import os
import pathlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from big_align.data.precomputed.embedding_files import EmbeddingFolder
from big_align.data.precomputed.shard_files import KEYS, PARTIAL, write_whole

ENDINGS = (".npy", ".parquet")
"""How the names of single files end."""


def write_npy(rows: EmbeddingFolder, path: pathlib.Path) -> None:
    """Writes one array [n d] in the order of the shards, and the keys, one per line.

    The keys go to the same name with the ending `.keys`. An example that was not embedded keeps its
    row, of zeros, with an empty key.

    Args:
      rows: the folder.
      path: the path of the array, which appears only when everything is complete.
    """
    write_whole(path.with_suffix(KEYS), b"".join(rows.key_lines(s) for s in rows.shards if s.count))
    partial, first = path.with_name(path.name + PARTIAL), 0
    shape = rows.count, rows.dim
    array = np.lib.format.open_memmap(partial, "w+", rows.dtype, shape)
    for shard in rows.shards:
        if shard.count:
            array[first : first + shard.count] = rows.array(shard)
            first += shard.count
    array.flush()
    del array
    os.replace(partial, path)


def write_parquet(rows: EmbeddingFolder, path: pathlib.Path) -> None:
    """Writes a table of `key` and `embedding`, a list of numbers; a shard is a row group.

    An example that was not embedded keeps its row, with nulls. Because of them the lists are not of
    a fixed size: before version 26 pyarrow cannot read such a list if it is null.

    Args:
      rows: the folder.
      path: the path of the table, which appears only when it is complete.
    """
    partial = path.with_name(path.name + PARTIAL)
    kind = pa.large_list(pa.from_numpy_dtype(np.dtype(rows.dtype)))
    schema = pa.schema([("key", pa.string()), ("embedding", kind)])
    with pq.ParquetWriter(partial, schema) as writer:
        for shard in rows.shards:
            if not shard.count:
                continue
            # A key may have bytes that are not UTF-8, which a Parquet string cannot hold.
            lines = rows.key_lines(shard).decode("utf-8", "replace").split("\n")[:-1]
            there = np.array([bool(key) for key in lines])
            ends = np.concatenate([[0], np.cumsum(rows.dim * there)])
            values = pa.array(rows.array(shard)[there].reshape(-1))
            embedding = pa.LargeListArray.from_arrays(ends, values, mask=pa.array(~there))
            keys = pa.array([key or None for key in lines], pa.string())
            writer.write_table(pa.Table.from_arrays([keys, embedding], schema=schema))
    os.replace(partial, path)
