"""Embeddings that were made and are in no generation yet: they survive the end of the process."""

import json
import os
import pathlib
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from big_align.core.regular_files import open_given
from big_align.core.whole_files import naming

BLOB_MAX = 2**26  # bytes that go with a row; no thumbnail has more
Record = list[Any]
"""What identifies a row: [name, signature], or [text]."""


class PendingRows:
    """Rows that are appended to three files; a row counts once its line in the last is complete.

    So a process can be killed at any time. The next one cuts off what is incomplete, and whatever
    follows a row that is not as it was written: a line ends with the checksum of its row. What
    identifies the rows is in `records`, in their order.
    """

    def __init__(self, folder: pathlib.Path, kind: str, dim: int, dtype: str):
        names = ("vectors", "bytes", "rows")
        self._paths = [folder / f"pending-{kind}.{name}" for name in names]
        self._dim, self._dtype = dim, np.dtype(dtype)
        self.records: list[Record] = []
        self._ends = [0]
        for path in self._paths:
            path.touch()
        self._recover()

    def _recover(self) -> None:
        """Reads the rows that are complete, and cuts off the rest."""
        size = 0
        vectors, blobs, rows = map(open_given, self._paths)
        with vectors, blobs, rows:
            for line in rows:
                try:
                    record, end, crc32 = json.loads(line)
                    blob = blobs.read(max(0, min(end - self._ends[-1], BLOB_MAX)))
                except (ValueError, TypeError, RecursionError):
                    break
                vector = vectors.read(self._row_bytes)
                if _write_line(record, end, vector, blob) != line:
                    break
                self.records.append(record)
                self._ends.append(end)
                size += len(line)
        sizes = len(self.records) * self._row_bytes, self._ends[-1], size
        for path, length in zip(self._paths, sizes, strict=True):
            os.truncate(path, length)

    @property
    def _row_bytes(self) -> int:
        return self._dim * self._dtype.itemsize

    def append(
        self,
        records: Sequence[Record],
        values: Float[np.ndarray, "n d"],
        blobs: Sequence[bytes] | None = None,
    ) -> None:
        """Stores embeddings with what identifies each, and bytes that go with it."""
        blobs = blobs or [b""] * len(records)
        ends = self._ends[-1] + np.cumsum([len(blob) for blob in blobs])
        vectors = [row.tobytes() for row in values.astype(self._dtype)]
        rows = zip(records, ends.tolist(), vectors, blobs, strict=True)
        lines = [_write_line(*row) for row in rows]
        contents = (b"".join(part) for part in (vectors, blobs, lines))
        for path, content in zip(self._paths, contents, strict=True):  # the lines come last
            with naming(path), path.open("ab") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        self.records += records
        self._ends += ends.tolist()

    def read_vectors(self) -> Float[np.ndarray, "n d"]:
        """Returns the embeddings, memory-mapped."""
        shape = len(self.records), self._dim
        if not self.records:
            return np.zeros(shape, self._dtype)
        return np.memmap(self._paths[0], self._dtype, "r", shape=shape)

    def read_blob(self, number: int) -> bytes:
        """Returns the bytes that go with a row."""
        with open_given(self._paths[1]) as file:
            file.seek(self._ends[number])
            return file.read(self._ends[number + 1] - self._ends[number])

    def remove(self) -> None:
        """Removes the files."""
        for path in reversed(self._paths):
            path.unlink(missing_ok=True)


def _write_line(record: Record, end: int, vector: bytes, blob: bytes) -> bytes:
    """Returns the line of a row: its record, where its bytes end, and the checksum of all."""
    crc32 = zlib.crc32(blob, zlib.crc32(vector, zlib.crc32(json.dumps([record, end]).encode())))
    return json.dumps([record, end, crc32]).encode() + b"\n"
