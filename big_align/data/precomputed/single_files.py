"""A folder of embeddings as one file, for other programs: `.npy` and its keys, or Parquet."""

import pathlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from big_align.data.precomputed.embedding_files import EmbeddingFolder
from big_align.data.precomputed.shard_files import KEYS
from big_align.whole_files import open_whole, write_whole

ENDINGS = (".npy", ".parquet")
"""How the names of single files end."""
OTHER_ENDINGS = frozenset(
    (".csv", ".feather", ".h5", ".hdf5", ".json", ".jsonl", ".npz", ".pickle", ".pkl", ".pq")
    + (".pt", ".pth", ".safetensors", ".tar", ".tsv", ".txt", ".zip")
)
"""How those of files end that nobody would give to a folder."""


def write_npy(rows: EmbeddingFolder, path: pathlib.Path) -> None:
    """Writes one array [n d] in the order of the shards, and the keys, one per line.

    The keys go to the same name with the ending `.keys`. An example that was not embedded keeps its
    row, of zeros, with an empty key.

    Args:
      rows: the folder.
      path: the path of the array, which appears only when everything is complete.
    """
    write_whole(path.with_suffix(KEYS), b"".join(rows.key_lines(s) for s in rows.shards if s.count))
    kind = np.lib.format.dtype_to_descr(np.dtype(rows.dtype))
    header = {"descr": kind, "fortran_order": False, "shape": (rows.count, rows.dim)}
    with open_whole(path) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for shard in rows.shards:
            if shard.count:
                file.write(np.ascontiguousarray(rows.array(shard)).data)


def write_parquet(rows: EmbeddingFolder, path: pathlib.Path) -> None:
    """Writes a table of `key` and `embedding`, a list of numbers; a shard is a row group.

    An example that was not embedded keeps its row, with nulls. Because of them the lists are not of
    a fixed size: before version 26 pyarrow cannot read such a list if it is null.

    Args:
      rows: the folder.
      path: the path of the table, which appears only when it is complete.
    """
    kind = pa.large_list(pa.from_numpy_dtype(np.dtype(rows.dtype)))
    schema = pa.schema([("key", pa.string()), ("embedding", kind)])
    with open_whole(path) as file, pq.ParquetWriter(file, schema) as writer:
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
