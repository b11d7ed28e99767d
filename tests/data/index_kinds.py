"""A small index of images and captions, written without a model, and other files in its place."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from example_kinds import SIZE, Path, Random, Spoil
from folder_kinds import STRANGERS

from big_align.use.search.stores import generations, index_folder
from big_align.use.search.stores.index_folder import METADATA
from big_align.use.search.stores.pending_rows import PendingRows
from big_align.use.search.stores.store import CAPTIONS, IMAGES, KINDS, IndexEntry

TEXTS = ["a dog", "a cat"]
FILES = ("images.npy", "captions.npy", "images.parquet", "captions.parquet", METADATA)


def write_index(folder: Path) -> None:
    folder /= "x"
    folder.mkdir()
    vectors = np.random.default_rng(0).normal(size=(SIZE, 4)).astype(np.float16)
    entries = [
        IndexEntry(f"{n}.jpg", str(n), "s", n, "", [TEXTS[n % 2]], None) for n in range(SIZE)
    ]
    pending = {kind: PendingRows(folder, kind, 4, "float16") for kind in KINDS}
    thumbnails = [bytes([n]) * (n + 20) for n in range(SIZE)]
    pending[IMAGES].append([[entry.name, ""] for entry in entries], vectors, thumbnails)
    pending[CAPTIONS].append([[text] for text in TEXTS], vectors[: len(TEXTS)])
    places = {IMAGES: np.arange(SIZE), CAPTIONS: np.arange(len(TEXTS))}
    years = pa.table({"year": list(range(2000, 2000 + SIZE))})
    drafted = generations.draft(entries, TEXTS, years)
    generations.write(folder / "000001", drafted, None, pending, places)
    for rows in pending.values():
        rows.remove()
    info: dict[str, Any] = dict.fromkeys(index_folder.FIELDS)
    info |= {"generation": 1, "files": index_folder.add_up_generation(folder / "000001")}
    index_folder.write_info(folder, info)


def read_index(folder: Path) -> tuple[Any, int]:
    """Reads all that a search reads."""
    info, _, found = index_folder.open_generation(folder / "x")
    tables = [table.to_pydict() for table in (found.images, found.captions, found.metadata)]
    vectors = {kind: rows.tolist() for kind, rows in found.vectors.items()}
    thumbnails = [list(found.read_thumbnail(row)) for row in range(len(found.images))]
    return [info["model"], tables, vectors, thumbnails], 0


def resave(change: Callable[[np.ndarray], Any]) -> Spoil:
    def spoil(folder: Path, rng: Random) -> None:
        path = folder / "x" / "000001" / rng.choice(FILES[:2])
        np.save(path, change(np.load(path)))

    return spoil


def rewrite(change: Callable[[pa.Table], pa.Table]) -> Spoil:
    def spoil(folder: Path, rng: Random) -> None:
        path = folder / "x" / "000001" / rng.choice(FILES[2:])
        pq.write_table(change(pq.read_table(path)), path)

    return spoil


def replace(make: Callable[[Path], None]) -> Spoil:
    def spoil(folder: Path, rng: Random) -> None:
        path = folder / "x" / "000001" / rng.choice([*FILES, index_folder.THUMBNAILS])
        path.unlink()
        make(path)

    return spoil


FAULTS = [
    *map(resave, (np.int8, np.float32, lambda x: x > 0, lambda x: x * np.nan, lambda x: x[:, 0])),
    *map(resave, (lambda x: x[:, :2], lambda x: x[..., None], lambda x: x[1:], lambda x: x[::-1])),
    rewrite(lambda table: table.rename_columns([f"{x}_" for x in table.column_names])),
    rewrite(lambda table: pa.table({x: list(range(len(table))) for x in table.column_names})),
    rewrite(lambda table: table.slice(1)),
    *map(replace, STRANGERS),
]
