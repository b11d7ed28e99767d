"""Brings an index in LanceDB up to date, a block of images at a time.

Of what is there, eight bytes for each image and each caption are in memory. The captions of a block
are written before its images, and an image is there once its row is: what a stopped run left beyond
that is dropped by the next. Of two runs at once, the one that began later goes on, and the other
ends before it writes again: each block asks whether the index still names its run.
"""

import contextlib
import datetime
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float, Int
from lancedb.index import BTree

from big_align.core.errors import UserError
from big_align.data.precomputed.shard_files import check_same
from big_align.use.search.stores.digests import digest_text, find_among
from big_align.use.search.stores.on_lance.lance_columns import Stored, WrittenColumns
from big_align.use.search.stores.on_lance.lance_search import BATCH, LEAST, VECTOR, LanceSearch
from big_align.use.search.stores.on_lance.lance_tables import (
    LanceTables,
    among,
    as_column,
    as_dataset,
    as_vectors,
    telling,
)
from big_align.use.search.stores.store import (
    CAPTIONS,
    IMAGES,
    KINDS,
    IndexEntry,
    SearchGoal,
)
from big_align.use.search.stores.trained_search import SearchTrainer, train_search

BLOCK = 4096  # images
ASKED = 4096  # names or numbers in a condition
JOINED_AFTER = 64  # blocks: each adds files, which are joined then
KEPT = datetime.timedelta(days=1)
"""How long versions are kept, for those who search one."""
GROWN = 2  # partitions are trained again for this many times the rows that trained them
BUILT = datetime.timedelta(seconds=1)
"""The same of an index that nobody can search yet."""
FACTS = ("name", "key", "signature", "captions")
METHOD = "ivf_rq"
FOUND_BY = {IMAGES: ("id", "name"), CAPTIONS: ("id", "number")}
"""Columns by which rows are found."""


@contextlib.contextmanager
def open_writer(
    place: str,
    settings: Mapping[str, Any],
    made_by: Mapping[str, Any],
    count_dims: Callable[[], int],
) -> Iterator["LanceWriter"]:
    """Opens an index made with these settings, or begins one, as its writer."""
    tables = LanceTables(place, write=True)
    info = tables.read_info()
    if info is None:
        if tables.names:
            raise UserError(f"lancedb:{place} holds other tables; give another place")
        info = {**settings, "dim": count_dims(), "generation": 0, "search": {}, "columns": {}}
        info |= {"stored": 0, "images": 0, "captions": 0}
    there = {field: info[field] for field in settings}
    check_same(f"lancedb:{place}", there, settings)
    info |= made_by | {"run": uuid.uuid4().hex}
    tables.write_info(info)
    tables.create(info["dim"], info["dtype"])
    yield LanceWriter(tables, info)


class LanceWriter:
    """Writes the rows of an index in LanceDB."""

    block = BLOCK
    methods = (METHOD,)

    def __init__(self, tables: LanceTables, info: dict[str, Any]):
        self._all, self.info = tables, info
        self._tables = {kind: tables.open(kind) for kind in KINDS}
        self._columns = WrittenColumns(tables, info, self._tables.values())
        self._blocks = 0
        with telling(tables.place):
            self._mend()
            self._index_columns()
            self._old = {  # files, of which the codes may name rows
                kind: [each.fragment_id for each in table.to_lance().get_fragments()]
                for kind, table in self._tables.items()
                if info["generation"]
            }
        self._begin([])

    def _mend(self) -> None:
        """Drops what a stopped run left, and what two at once wrote twice; notes what is there."""
        self._columns.drop_unnoted()
        names, ids = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for batch in self._read(IMAGES, ["id", "name"]):
            ids.append(batch["id"].to_numpy())
            texts = batch["name"].to_pylist()
            names.append(np.fromiter(map(digest_text, texts), np.int64, len(texts)))
        every, digests = np.concatenate(ids), np.concatenate(names)
        self._next = int(every.max(initial=-1)) + 1
        self._tables[CAPTIONS].delete(f"id >= {self._next}")
        repeated = _find_repeated(every) | _find_repeated(digests)
        self._drop(every[repeated].tolist())
        self._names = np.sort(digests[~repeated])
        numbers = [batch["number"].to_numpy() for batch in self._read(CAPTIONS, ["number"])]
        self._texts = np.unique(np.concatenate([np.zeros(0, np.int64), *numbers]))

    def _read(self, kind: str, columns: Sequence[str], where: str | None = None) -> Iterator[Any]:
        asked = self._tables[kind].search().select(list(columns))
        yield from (asked if where is None else asked.where(where)).to_batches(BATCH)

    def _drop(self, ids: Sequence[int]) -> None:
        """Deletes images; one is there until its captions are not."""
        for part in _split(ids):
            for kind in (CAPTIONS, IMAGES):
                self._tables[kind].delete(among("id", part))

    def _begin(self, there: list[dict[str, Any]]) -> None:
        self._there = {row["name"]: row for row in there}
        self._new: dict[str, tuple[np.ndarray, bytes]] = {}
        self._vectors: dict[str, np.ndarray] = {}  # of texts

    def list_names(self) -> Iterator[list[str]]:
        """Yields the names of all images that the index has, some at a time."""
        with telling(self._all.place):
            for batch in self._read(IMAGES, ["name"]):
                yield batch["name"].to_pylist()

    def find_images(self, names: Sequence[str]) -> Callable[[str, str], bool]:
        """Begins a block; tells of which names and signatures the index has the embeddings."""
        known = find_among(self._names, names)
        asked = [name for name, found in zip(names, known, strict=True) if found]
        stored = [stored for stored, _ in self.info["columns"].values()]
        there: list[dict[str, Any]] = []
        with telling(self._all.place):
            for part in _split(asked):
                for batch in self._read(IMAGES, ["id", *FACTS, *stored], among("name", part)):
                    there += batch.to_pylist()
        self._begin(there)
        return lambda name, signature: self._there.get(name, {}).get("signature") == signature

    def add_images(
        self,
        entries: Sequence[IndexEntry],
        vectors: Float[np.ndarray, "n d"],
        thumbnails: Sequence[bytes],
    ) -> None:
        """Takes embeddings of images, which are written with their block."""
        rows = zip(vectors.astype(self.info["dtype"]), thumbnails, strict=True)
        self._new |= {entry.name: row for entry, row in zip(entries, rows, strict=True)}

    def find_texts(self, texts: Sequence[str]) -> set[str]:
        """Returns the texts whose embeddings the index has from earlier runs."""
        numbers = [
            digest_text(text)
            for text, known in zip(texts, find_among(self._texts, texts), strict=True)
            if known
        ]
        with telling(self._all.place):
            for part in _split(numbers):
                for batch in self._read(CAPTIONS, ["text", VECTOR], among("number", part)):
                    rows = zip(batch["text"].to_pylist(), as_vectors(batch[VECTOR]), strict=True)
                    self._vectors |= dict(rows)
        return self._vectors.keys() & set(texts)

    def add_texts(self, texts: Sequence[str], vectors: Float[np.ndarray, "n d"]) -> None:
        """Takes embeddings of texts, which are written with their block."""
        self._vectors |= dict(zip(texts, vectors.astype(self.info["dtype"]), strict=True))

    def end_block(self, entries: Sequence[IndexEntry], metadata: pa.Table, texts: bool) -> int:
        """Makes a block hold these images and no others; returns how many are gone."""
        with telling(self._all.place):
            self._check_run()
            columns = self._columns.take(metadata)
            facts = [
                {"name": each.name, "key": each.key, "signature": each.signature}
                | {"captions": list(dict.fromkeys(each.captions))}
                for each in entries
            ]
            for name, column in columns.items():
                for row, value in zip(facts, column.to_pylist(), strict=True):
                    row[name] = value
            put = [number for number, row in enumerate(facts) if not self._has(row)]
            again = {facts[number]["name"] for number in put}
            kept = {row["name"] for row in facts} - again
            stale = [row["id"] for name, row in self._there.items() if name not in kept]
            moved = [name for name in again if name not in self._new]
            if put or stale:
                self._note_change()
            self._fetch(moved)
            self._drop(stale)
            if put:
                taken = {name: column.take(put) for name, column in columns.items()}
                self._write([facts[number] for number in put], taken, texts)
            self._blocks += 1
            if self._blocks % JOINED_AFTER == 0:
                self._join()
        return len(stale) - len(moved)

    def _check_run(self) -> None:
        """Raises UserError if another run has begun since: it has taken over."""
        now = self._all.read_info()
        if now is None or now["run"] != self.info["run"]:
            raise UserError(
                f"lancedb:{self._all.place}: another process is writing this index; it goes on "
                "from here"
            )

    def _note_change(self) -> None:
        """Notes, before rows change, that a run has to prepare the search, this one or the next."""
        if not self.info.get("changed"):
            self.info["changed"] = True
            self._all.write_info(self.info)

    def _has(self, row: dict[str, Any]) -> bool:
        """Returns whether the index has an image with these facts."""
        there = self._there.get(row["name"], {})
        return row["name"] not in self._new and all(
            _are_same(there.get(field), value) for field, value in row.items()
        )

    def _fetch(self, names: Sequence[str]) -> None:
        """Reads what is kept of images whose facts have changed."""
        for part in _split(names):
            for batch in self._read(IMAGES, ["name", VECTOR, "thumbnail"], among("name", part)):
                rows = zip(as_vectors(batch[VECTOR]), batch["thumbnail"].to_pylist(), strict=True)
                self._new |= dict(zip(batch["name"].to_pylist(), rows, strict=True))

    def _write(self, facts: list[dict[str, Any]], columns: Stored, texts: bool) -> None:
        """Writes rows of images, after those of their captions."""
        ids = np.arange(self._next, self._next + len(facts))
        self._next += len(facts)
        captions = [row["captions"] for row in facts]
        owners = np.repeat(np.arange(len(facts)), list(map(len, captions)))
        every = [text for each in captions for text in each] if texts else []
        if every:
            vectors = np.stack([self._vectors[text] for text in every])
            part = {"id": ids[owners], "number": list(map(digest_text, every)), "text": every}
            repeated = {name: column.take(owners) for name, column in columns.items()}
            self._add(CAPTIONS, part | repeated, vectors)
        new = [self._new[row["name"]] for row in facts]
        part = {"id": ids} | {field: [row[field] for row in facts] for field in FACTS}
        part["thumbnail"] = [thumbnail for _, thumbnail in new]
        self._add(IMAGES, part | columns, np.stack([vector for vector, _ in new]))

    def _add(self, kind: str, part: dict[str, Any], vectors: Float[np.ndarray, "n d"]) -> None:
        if not np.isfinite(vectors).all():
            raise UserError(f"{kind}: an embedding is not finite: the model has made it so")
        schema = self._tables[kind].schema
        part = {name: _as_arrow(values, schema.field(name).type) for name, values in part.items()}
        part[VECTOR] = as_column(vectors)
        arrays = [part[field.name] for field in schema]
        self._tables[kind].add(pa.table(arrays, schema=schema))

    def _join(self) -> None:
        """Joins the files that this run has written, and drops old versions.

        Files of earlier runs stay as they are until the end: the codes name their rows by place.
        """
        for kind, table in self._tables.items():
            _compact(table, excluded_fragment_ids=self._old.get(kind, []))
            self._drop_versions(table)

    def _join_all(self) -> None:
        """Rewrites what deletions and additions have split, as a search looks into each piece.

        Deleted rows leave their files, and rows that were added join the codes of the others.
        """
        for table in self._tables.values():
            _compact(table, materialize_deletions_threshold=0.0)
        self._index_columns()
        for table in self._tables.values():
            for index in table.list_indices():
                told = table.index_stats(index.name)
                if index.columns == [VECTOR] and told.num_indices + told.num_unindexed_rows > 1:
                    given = dict(num_indices_to_merge=told.num_indices, index_names=[index.name])
                    with as_dataset(table) as dataset:
                        dataset.optimize.optimize_indices(**given)
            self._drop_versions(table)

    def _index_columns(self) -> None:
        """Brings up to date what finds rows by their columns."""
        for kind, fields in FOUND_BY.items():
            table = self._tables[kind]
            there = {index.columns[0]: index.name for index in table.list_indices()}
            for field in fields if table.count_rows() else ():
                if field not in there:
                    table.create_index(field, config=BTree())
                elif table.index_stats(there[field]).num_unindexed_rows:
                    with as_dataset(table) as dataset:
                        dataset.optimize.optimize_indices(index_names=[there[field]])

    def _drop_versions(self, table: Any) -> None:
        with as_dataset(table) as dataset:
            dataset.cleanup_old_versions(KEPT if self.info["generation"] else BUILT)

    def finish(self, gone: Sequence[str], goal: SearchGoal) -> int:
        """Drops what is gone, and prepares the search; returns how many images are gone."""
        with telling(self._all.place):
            self._check_run()
            ids: list[int] = []
            for part in _split(gone):
                for batch in self._read(IMAGES, ["id"], among("name", part)):
                    ids += batch["id"].to_pylist()
            if ids or self._columns.list_unseen():
                self._note_change()
            self._drop(ids)
            self._columns.end()
            new = self.info.get("wanted") != goal.note()
            if new or self.info.get("changed") or not self.info["generation"]:
                self._prepare(goal)
        return len(ids)

    def _prepare(self, goal: SearchGoal) -> None:
        self._join_all()
        search = {kind: self._prepare_kind(kind, goal) for kind in KINDS}
        counts = {kind: table.count_rows() for kind, table in self._tables.items()}
        done = {"generation": self.info["generation"] + 1, "search": search, "wanted": goal.note()}
        self.info |= counts | done | {"changed": False}
        self._check_run()
        self._all.write_info(self.info)

    def _prepare_kind(self, kind: str, goal: SearchGoal) -> dict[str, Any]:
        """Trains what searches a kind if need be, and measures it; returns what to note."""
        before, count = self.info["search"].get(kind, {}), self._tables[kind].count_rows()
        rows = self._search(kind, before.get("partitions", 1))

        def train() -> tuple[LanceSearch, dict[str, Any]]:
            trained = before.get("trained_on", 0)
            if not count / GROWN <= trained <= count * GROWN:
                rows.train()
                trained = count
            return rows, {"trained_on": trained}

        trainer = SearchTrainer(
            METHOD,
            "the partitions find",
            LEAST,
            train,
            lambda given, k: rows.search_exactly(given, k)[0],
            lambda name, most: self._search(name).sample(most),
        )
        return train_search(kind, count, goal, trainer)

    def _search(self, kind: str, partitions: int = 1) -> LanceSearch:
        return LanceSearch(self._tables[kind], "id" if kind == IMAGES else "number", partitions)


def _compact(table: Any, **given: Any) -> None:
    """Joins files, each of as many rows as blocks are joined."""
    size = BLOCK * JOINED_AFTER
    with as_dataset(table) as dataset:
        dataset.optimize.compact_files(target_rows_per_fragment=size, **given)


def _split(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yields as many values at a time as a condition lists."""
    for first in range(0, len(values), ASKED):
        yield values[first : first + ASKED]


def _as_arrow(values: Any, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    arrow = isinstance(values, pa.Array | pa.ChunkedArray)
    return values.cast(kind) if arrow else pa.array(values, kind)


def _find_repeated(values: Int[np.ndarray, "n"]) -> Bool[np.ndarray, "n"]:
    """Returns which numbers are there more than once."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return counts[places] > 1


def _are_same(one: Any, other: Any) -> bool:
    """Returns whether two values are equal; NaN equals itself."""
    return one == other or (one != one and other != other)
