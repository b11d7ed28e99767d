"""A folder of embeddings as one file, for other programs: `.npy` and its keys, or Parquet."""

import pathlib
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from big_align.core.whole_files import open_whole, write_whole
from big_align.data.precomputed.embedding_files import EmbeddingFolder
from big_align.data.precomputed.shard_files import KEYS, Shard, join_keys
from big_align.data.tables.key_joins import find_repeated, spell_shortly

ENDINGS = (".npy", ".parquet")
"""How the names of single files end."""
OTHER_ENDINGS = frozenset(
    (".csv", ".feather", ".h5", ".hdf5", ".json", ".jsonl", ".npz", ".pickle", ".pkl", ".pq")
    + (".pt", ".pth", ".safetensors", ".tar", ".tsv", ".txt", ".zip")
)
"""How those of files end that nobody would give to a folder."""


Keys = Callable[[Shard], list[str]]
"""Returns the keys of the rows of a shard, "" for an example that was not embedded."""


def name_rows(rows: EmbeddingFolder, unique: bool) -> tuple[Keys, str]:
    """Returns the keys of the rows in one file, and what is to be said of them.

    If several files of the source have the same key, they are SHARD/KEY. `unique` says whether a
    key is that of one row, as for images; the captions of one share its key.
    """
    short = spell_shortly(shard.name for shard in rows.shards)

    def read() -> Iterator[tuple[str, list[str]]]:
        yield from ((shard.name, rows.keys(shard)) for shard in rows.shards if shard.count)

    def read_qualified(shard: Shard) -> list[str]:
        return [key and f"{short[shard.name]}/{key}" for key in rows.keys(shard)]

    if shared := find_repeated(read, within=False):
        key, (first, second) = shared
        return read_qualified, f"keys are SHARD/KEY, since {key!r} is in {first} and in {second}"
    if unique and (repeated := find_repeated(read, within=True)):
        return rows.keys, f"several rows have the key {repeated[0]!r}, all in {repeated[1][0]}"
    return rows.keys, ""


def write_npy(rows: EmbeddingFolder, path: pathlib.Path, keys: Keys) -> None:
    """Writes one array [n d] in the order of the shards, and the keys, one per line.

    The keys go to the same name with the ending `.keys`, and the array appears when all is
    complete. An example that was not embedded keeps its row, of zeros, with an empty key.
    """
    lines = b"".join(join_keys(keys(shard)) for shard in rows.shards if shard.count)
    write_whole(path.with_suffix(KEYS), lines)
    kind = np.lib.format.dtype_to_descr(np.dtype(rows.dtype))
    header = {"descr": kind, "fortran_order": False, "shape": (rows.count, rows.dim)}
    with open_whole(path) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for shard in rows.shards:
            if shard.count:
                file.write(np.ascontiguousarray(rows.array(shard)).data)


def write_parquet(rows: EmbeddingFolder, path: pathlib.Path, keys: Keys) -> None:
    """Writes a table of `key` and `embedding`, a list of numbers; a shard is a row group.

    It appears when it is complete. An example that was not embedded keeps its row, with nulls.
    Because of them the lists are not of a fixed size: before version 26 pyarrow cannot read such a
    list if it is null.
    """
    kind = pa.large_list(pa.from_numpy_dtype(np.dtype(rows.dtype)))
    schema = pa.schema([("key", pa.string()), ("embedding", kind)])
    with open_whole(path) as file, pq.ParquetWriter(file, schema) as writer:
        for shard in rows.shards:
            if not shard.count:
                continue
            # A Parquet string cannot hold bytes that are not UTF-8; keys that differ still do.
            encoded = (key.encode("utf-8", "surrogateescape") for key in keys(shard))
            lines = [data.decode("utf-8", "backslashreplace") for data in encoded]
            there = np.array([bool(key) for key in lines])
            ends = np.concatenate([[0], np.cumsum(rows.dim * there)])
            values = pa.array(rows.array(shard)[there].reshape(-1))
            embedding = pa.LargeListArray.from_arrays(ends, values, mask=pa.array(~there))
            column = pa.array([key or None for key in lines], pa.string())
            writer.write_table(pa.Table.from_arrays([column, embedding], schema=schema))
