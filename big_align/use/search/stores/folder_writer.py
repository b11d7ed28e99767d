"""Brings an index in a folder up to date: what is embedded is kept, and then all is written."""

import contextlib
import importlib.util
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int

from big_align.core.errors import UserError
from big_align.core.whole_files import PARTIAL, check_local, lock_folder
from big_align.data.precomputed.shard_files import check_same
from big_align.use.search.stores import generations
from big_align.use.search.stores.exact_search import search_exactly
from big_align.use.search.stores.index_folder import (
    INFO,
    IndexGeneration,
    add_up_generation,
    generation_folder,
    read_generation,
    read_info,
    remove_others,
    write_info,
)
from big_align.use.search.stores.pending_rows import PendingRows
from big_align.use.search.stores.scann_rows import LEAST, ScannRows
from big_align.use.search.stores.store import (
    CAPTIONS,
    IMAGES,
    KINDS,
    IndexEntry,
    SearchGoal,
)
from big_align.use.search.stores.trained_search import SearchTrainer, train_search

BATCH = 65536  # names that are listed at a time


@contextlib.contextmanager
def open_writer(
    place: str,
    settings: Mapping[str, Any],
    made_by: Mapping[str, Any],
    count_dims: Callable[[], int],
) -> Iterator["FolderWriter"]:
    """Locks a folder, which holds an index made with these settings, or nothing."""
    check_local(place)
    folder = pathlib.Path(place)
    if not (folder / INFO).is_file():
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        # A run can be stopped before it writes more.
        if any(not name.endswith(PARTIAL) for name in names):
            raise UserError(f"{folder} holds other files; give another --output")
        dims = count_dims()
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder, "another process is writing this index"):
        if (folder / INFO).is_file():
            info = read_info(folder)
            check_same(folder, {field: info[field] for field in settings}, settings)
            info |= made_by
        else:
            info = {**settings, **made_by, "dim": dims, "generation": 0, "search": {}, "files": {}}
        write_info(folder, info)
        yield FolderWriter(folder, info)


class FolderWriter:
    """Writes embeddings to files as they come, and at the end a generation of all."""

    block = None  # a generation is written whole
    methods = ("scann",)

    def __init__(self, folder: pathlib.Path, info: dict[str, Any]):
        self._folder, self.info = folder, info
        self._old: IndexGeneration | None = None
        if info["generation"]:
            self._old = read_generation(generation_folder(folder, info), info["files"])
        remove_others(folder, info["generation"])
        self._pending = {
            kind: PendingRows(folder, kind, info["dim"], info["dtype"]) for kind in KINDS
        }
        self._known: dict[str, dict[Any, int]] = {}  # by kind, the rows that there are
        self._places = [np.zeros(0, np.int64), np.zeros(0, np.int64)]

    def list_names(self) -> Iterator[list[str]]:
        """Yields the names of all images that the index has, some at a time."""
        if self._old is not None:
            for batch in self._old.images.select(["name"]).to_batches(BATCH):
                yield batch["name"].to_pylist()

    def find_images(self, names: Sequence[str]) -> Callable[[str, str], bool]:
        """Begins the block; tells of which names and signatures the index has the embeddings."""
        pairs = []
        if self._old is not None:
            columns = (self._old.images[field].to_pylist() for field in ("name", "signature"))
            pairs = list(zip(*columns, strict=True))
        known = self._know(IMAGES, pairs, map(tuple, self._pending[IMAGES].records))
        return lambda *pair: pair in known

    def add_images(
        self,
        entries: Sequence[IndexEntry],
        vectors: Float[np.ndarray, "n d"],
        thumbnails: Sequence[bytes],
    ) -> None:
        """Stores embeddings and thumbnails: from now on they survive the process."""
        self._add(IMAGES, [(each.name, each.signature) for each in entries], vectors, thumbnails)

    def find_texts(self, texts: Sequence[str]) -> set[str]:
        """Returns the texts whose embeddings the index has."""
        there = []
        if self._old is not None and len(self._old.vectors[CAPTIONS]):
            there = self._old.captions["text"].to_pylist()
        pending = (text for (text,) in self._pending[CAPTIONS].records)
        known = self._know(CAPTIONS, there, pending)
        return {text for text in texts if text in known}

    def add_texts(self, texts: Sequence[str], vectors: Float[np.ndarray, "n d"]) -> None:
        """Stores embeddings of texts: from now on they survive the process."""
        self._add(CAPTIONS, texts, vectors)

    def _know(self, kind: str, there: Sequence[Any], pending: Iterator[Any]) -> dict[Any, int]:
        known = {each: len(there) + number for number, each in enumerate(pending)}
        self._known[kind] = known | {each: number for number, each in enumerate(there)}
        return self._known[kind]

    def _add(self, kind: str, keys: Sequence[Any], *rows: Any) -> None:
        known, pending = self._known[kind], self._pending[kind]
        before = len(self._old.vectors[kind]) if self._old is not None else 0
        first = before + len(pending.records)
        pending.append([[key] if isinstance(key, str) else list(key) for key in keys], *rows)
        known.update({key: first + number for number, key in enumerate(keys)})

    def end_block(self, entries: Sequence[IndexEntry], metadata: pa.Table, texts: bool) -> int:
        """Drafts the tables of these images; returns how many that were there are gone."""
        captions = list(dict.fromkeys(text for entry in entries for text in entry.captions))
        self._drafted = generations.draft(entries, captions, metadata)
        pairs = ((entry.name, entry.signature) for entry in entries)
        self._places = [
            np.array([self._known[IMAGES][pair] for pair in pairs], np.int64),
            np.array([self._known[CAPTIONS][text] for text in texts * captions], np.int64),
        ]
        before = len(self._old.images) if self._old is not None else 0
        return before - int((self._places[0] < before).sum())

    def finish(self, gone: Sequence[str], wanted: SearchGoal) -> int:
        """Writes the generation if it is another than before, and how it is searched."""
        moved = not all(np.array_equal(x, np.arange(len(x))) for x in self._places)
        old = self._old
        changed = old is None or moved or not generations.are_same(old, self._drafted)
        if changed or self.info.get("wanted") != wanted.note():
            self._write(wanted)
        for rows in self._pending.values():
            rows.remove()
        return 0

    def _write(self, wanted: SearchGoal) -> None:
        """Writes the next generation and what searches it, and then names it in `index.json`."""
        number = self.info["generation"] + 1
        path = self._folder / f"{number:06d}"
        places = dict(zip(KINDS, self._places, strict=True))
        generations.write(path, self._drafted, self._old, self._pending, places)
        made = read_generation(path, {})
        search = {kind: _prepare(made, kind, path / f"{kind}.scann", wanted) for kind in KINDS}
        counts = {"images": len(made.images), "captions": len(made.captions)}
        self.info |= counts | {"generation": number, "search": search, "wanted": wanted.note()}
        self.info["files"] = add_up_generation(path)
        write_info(self._folder, self.info)
        remove_others(self._folder, number)


def _prepare(
    made: IndexGeneration, kind: str, path: pathlib.Path, wanted: SearchGoal
) -> dict[str, Any]:
    """Builds and saves what searches a kind; returns what to note about it."""
    vectors, built = made.vectors[kind], []

    def train() -> tuple[ScannRows, dict[str, Any]]:
        built.append(ScannRows.build(vectors))
        return built[0], {}

    def sample(name: str, count: int) -> tuple[Int[np.ndarray, "_"], Any]:
        there, rng = made.vectors[name], np.random.default_rng(0)
        chosen = np.sort(rng.choice(len(there), min(count, len(there)), replace=False))
        return chosen, there[chosen]

    def search(given: Float[np.ndarray, "q d"], k: int) -> Int[np.ndarray, "q _"]:
        return search_exactly(given, vectors, k)[0]

    missing = "" if importlib.util.find_spec("scann") else "ScaNN"
    trainer = SearchTrainer("scann", "ScaNN finds", LEAST, train, search, sample, missing)
    noted = train_search(kind, len(vectors), wanted, trainer)
    if noted["method"] == trainer.method:
        built[0].save(path)
    return noted
