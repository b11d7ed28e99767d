"""Writes a generation of an index from the one before it and what was embedded since."""

import pathlib
import shutil
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Int

from big_align.core.errors import UserError
from big_align.core.whole_files import naming
from big_align.use.search.stores.index_folder import (
    METADATA,
    THUMBNAILS,
    IndexGeneration,
    sync,
)
from big_align.use.search.stores.pending_rows import PendingRows
from big_align.use.search.stores.store import CAPTIONS, IMAGES, KINDS, IndexEntry

BLOCK = 65536  # rows that are copied at a time


def draft(
    entries: Sequence[IndexEntry], texts: Sequence[str], metadata: pa.Table
) -> IndexGeneration:
    """Makes the tables of a generation, without embeddings and thumbnails."""
    numbers = {text: number for number, text in enumerate(texts)}
    captions = [list(dict.fromkeys(numbers[text] for text in e.captions)) for e in entries]
    columns = {
        name: pa.array([getattr(entry, name) for entry in entries], pa.string())
        for name in ("name", "key", "signature")
    }
    images = pa.table(columns | {"captions": pa.array(captions, pa.list_(pa.int32()))})
    table = pa.table({"text": pa.array(texts, pa.string())})
    return IndexGeneration(images, table, metadata, {}, np.zeros(0, np.uint8))


def are_same(there: IndexGeneration, here: IndexGeneration) -> bool:
    """Returns whether the tables of two generations are equal, except for ends of thumbnails."""
    return (
        there.images.drop_columns(["end", "crc32"]).equals(here.images)
        and there.captions.equals(here.captions)
        and there.metadata.equals(here.metadata)
    )


def write(
    path: pathlib.Path,
    drafted: IndexGeneration,
    old: IndexGeneration | None,
    pending: Mapping[str, PendingRows],
    places: Mapping[str, Int[np.ndarray, "_"]],
) -> None:
    """Writes a generation; anything left there by a stopped run is replaced.

    A row's place is counted through `old`, the generation before, and then `pending`, the rows
    embedded since; all by kind.
    """
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    with naming(path):
        for kind in KINDS:
            sources = [pending[kind].read_vectors()]
            sources = [old.vectors[kind] if old else sources[0][:0], *sources]
            _gather_rows(path / f"{kind}.npy", sources, places[kind])
        ends, sums = _gather_thumbnails(path / THUMBNAILS, old, pending[IMAGES], places[IMAGES])
        images = drafted.images.append_column("end", pa.array(ends, pa.int64()))
        tables = {
            f"{IMAGES}.parquet": images.append_column("crc32", pa.array(sums, pa.uint32())),
            f"{CAPTIONS}.parquet": drafted.captions,
            METADATA: drafted.metadata,
        }
        for name, table in tables.items():
            pq.write_table(table, path / name)
        for file in path.iterdir():
            sync(file)


def _gather_rows(
    path: pathlib.Path, sources: Sequence[np.ndarray], places: Int[np.ndarray, "n"]
) -> None:
    """Writes rows of two arrays, numbered through both, to a file.

    It is not mapped: on a full disk, writing to a mapped file kills the process.
    """
    first, second = sources
    shape, kind = (len(places), second.shape[1]), np.lib.format.dtype_to_descr(second.dtype)
    header = {"descr": kind, "fortran_order": False, "shape": shape}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, len(places), BLOCK):
            part = places[start : start + BLOCK]
            is_first, block = part < len(first), np.empty((len(part), shape[1]), second.dtype)
            block[is_first] = first[part[is_first]]
            block[~is_first] = second[part[~is_first] - len(first)]
            if not (finite := np.isfinite(block).all(axis=1)).all():
                row = start + int(np.argmin(finite))
                raise UserError(f"{path}: row {row} is not finite: the model has made it so")
            file.write(block.tobytes())


def _gather_thumbnails(
    path: pathlib.Path,
    old: IndexGeneration | None,
    pending: PendingRows,
    places: Int[np.ndarray, "n"],
) -> tuple[list[int], list[int]]:
    """Writes thumbnails one after another; returns where each ends, and their checksums."""
    before, written, ends, sums = len(old.images) if old else 0, 0, [], []
    with path.open("wb") as file:
        for place in places.tolist():
            first = place < before
            jpeg = old.read_thumbnail(place) if first else pending.read_blob(place - before)
            written += file.write(jpeg)
            ends.append(written)
            sums.append(zlib.crc32(jpeg))
    return ends, sums
