"""The nearest rows of a table of LanceDB, whose cosines are computed again from the embeddings.

The engine splits the rows into partitions by k-means and has five bits of every number, after a
random rotation (RaBitQ: Gao and Long 2024). A query goes through some partitions, and of as many
rows as seem nearest the embeddings are read, all at once.
"""

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from big_align.data.loading.parallel import count_cores
from big_align.parallel.meshes import make_mesh
from big_align.use.clusters.kmeans import approximate_centers
from big_align.use.clusters.kmeans_init import Sample
from big_align.use.search.stores.exact_search import rescore, search_blocks
from big_align.use.search.stores.on_lance.lance_tables import as_dataset, as_vectors
from big_align.use.search.stores.scann_rows import count_leaves
from big_align.use.search.stores.store import EXACT_BELOW

VECTOR = "vector"
BITS = 5
"""Of a number. Of a million rows, five bits find as many among twelve rows as seven, four fewer."""
SAMPLED = 128
"""Rows per partition that train them."""
SEARCHED = (*(0.01, 0.02, 0.03, 0.04, 0.055, 0.07, 0.085, 0.1, 0.12, 0.15, 0.2, 0.3), 0.5, 0.7, 1.0)
REORDERED = (1.2, 1.5, 2, 4)
"""Codes alone do not put the ten nearest before all others, but nearly always among twelve."""
SMALLEST = 512
"""Rows of a partition: to go to one takes the engine as long as to go through so many."""
LEAST = 256
"""With fewer rows, partitions cannot be trained."""
BATCH = 8192
TOGETHER = 64
"""Queries, at least, that a core is asked for: the engine goes through a request on one core."""
CORES = count_cores()
os.environ.setdefault("LANCE_CPU_THREADS", str(CORES))  # else two cores are left to reading


class LanceSettings(NamedTuple):
    """The scope of a search."""

    partitions: int  # of the table
    searched: int  # partitions that a query goes through
    reordered: float  # rows whose embeddings are read, as a multiple of those that are wanted


class LanceSearch:
    """Searches a table; `key` is the column that numbers what is found."""

    def __init__(self, table: Any, key: str, partitions: int = 1):
        self._table, self._key, self._partitions = table, key, partitions
        self._repeats = key != "id"  # rows with one number are one thing to be found

    def train(self) -> None:
        """Trains partitions and codes for the rows that there are.

        The centers of the partitions are our own k-means': with the engine's, queries of a million
        rows went through 55 partitions of 1000 to find what they find in 30 of these.
        """
        count = self._table.count_rows()
        size = max(SMALLEST, count // count_leaves(count))
        self._partitions = max(1, count // size)
        _, rows = self.sample(SAMPLED * self._partitions)
        centers = approximate_centers(Sample(rows), self._partitions, make_mesh(1))
        # The size is noted with the index: without, partitions below 2048 rows would be joined.
        given = dict(ivf_centroids=centers, num_partitions=len(centers), num_bits=BITS)
        named = dict(name=f"{VECTOR}_idx", metric="L2", replace=True, target_partition_size=size)
        with as_dataset(self._table) as dataset:
            dataset.create_index(VECTOR, "IVF_RQ", **named, **given)

    def list_settings(self) -> Iterator[Iterator[LanceSettings]]:
        """Yields settings to try, by the rows that are read again."""
        for reordered in REORDERED:
            searched = (max(1, round(share * self._partitions)) for share in SEARCHED)
            yield (LanceSettings(self._partitions, each, reordered) for each in searched)

    def search(
        self, queries: Float[np.ndarray, "q d"], k: int, settings: LanceSettings | None
    ) -> Int[np.ndarray, "q _"]:
        """Returns the numbers of rows that are probably nearest."""
        return self.find(queries, k, settings)[0]

    def search_exactly(
        self, queries: Float[np.ndarray, "q d"], k: int, where: str | None = None
    ) -> tuple[Int[np.ndarray, "q _"], Float[np.ndarray, "q _"]]:
        """Compares with all rows that meet a condition, which are read once for all queries."""
        seen = np.zeros(0, np.int64)

        def read_blocks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            nonlocal seen
            asked = self._table.search().select([self._key, VECTOR])
            for batch in (asked if where is None else asked.where(where)).to_batches(BATCH):
                numbers, rows = batch[self._key].to_numpy(), as_vectors(batch[VECTOR])
                if self._repeats:
                    numbers, first = np.unique(numbers, return_index=True)
                    new = ~np.isin(numbers, seen)
                    numbers, rows = numbers[new], rows[first[new]]
                    seen = np.concatenate([seen, numbers])
                rows = np.float32(rows)
                yield numbers, rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)

        return search_blocks(queries, read_blocks(), k)

    def sample(self, count: int) -> tuple[Int[np.ndarray, "_"], Float[np.ndarray, "_ d"]]:
        """Draws rows: their numbers and embeddings."""
        total = self._table.count_rows()
        chosen = np.random.default_rng(0).choice(total, min(count, total), replace=False)
        if not total:
            return np.zeros(0, np.int64), np.zeros((0, 1), np.float32)
        taken = self._table.take_offsets(np.sort(chosen).tolist())
        found = taken.select([self._key, VECTOR]).to_arrow()
        return found[self._key].to_numpy(), as_vectors(found[VECTOR])

    def find(
        self,
        queries: Float[np.ndarray, "q d"],
        k: int,
        settings: LanceSettings | None,
        where: str | None = None,
    ) -> tuple[Int[np.ndarray, "q _"], Float[np.ndarray, "q _"]]:
        """Returns the numbers of the nearest rows, the nearest first, and their cosines.

        Without settings, and among few rows that meet the condition, all are compared. Among more
        of them, as many more partitions are searched as keeps the recall: their number grows with
        the root of what the condition excludes.
        """
        total = self._table.count_rows()
        allowed = total if where is None else self._table.count_rows(where)
        few = where is not None and allowed < EXACT_BELOW
        if settings is None or few or 2 * k >= allowed:
            return self.search_exactly(queries, k, where)
        searched = math.ceil(settings.searched * math.sqrt(total / allowed))
        settings = settings._replace(searched=min(settings.partitions, searched))

        def find_part(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            wanted = math.ceil(k * settings.reordered)
            while wanted < allowed:
                numbers, scores, full = self._ask(part, k, wanted, settings, where)
                if (numbers >= 0).all():
                    return numbers, scores
                if not full:  # the partitions have too few
                    break
                wanted *= 2  # several rows have the same number
            return self.search_exactly(part, k, where)

        if len(queries) < 2 * TOGETHER or CORES == 1:
            return find_part(queries)
        # A request costs as much as dozens of queries, so that a core gets one.
        parts = np.array_split(queries, min(CORES, len(queries) // TOGETHER))
        with ThreadPoolExecutor(CORES) as pool:
            numbers, scores = zip(*pool.map(find_part, parts), strict=True)
        return np.concatenate(numbers), np.concatenate(scores)

    def _ask(
        self,
        queries: Float[np.ndarray, "q d"],
        k: int,
        wanted: int,
        settings: LanceSettings,
        where: str | None,
    ) -> tuple[Int[np.ndarray, "q k"], Float[np.ndarray, "q k"], bool]:
        """Reads the embeddings of as many rows as are wanted for each query.

        Returns numbers, of which -1 is none, cosines, and whether there were as many rows.
        """
        given = queries[0] if len(queries) == 1 else list(queries)
        asked = self._table.search(given, vector_column_name=VECTOR).distance_type("l2")
        asked = asked.limit(wanted).select([self._key, VECTOR, "_distance"])
        asked = asked.minimum_nprobes(settings.searched).maximum_nprobes(settings.searched)
        if where is not None:
            asked = asked.where(where)
        found = asked.to_arrow()
        query, numbers = np.zeros(len(found), np.int64), found[self._key].to_numpy()
        if "query_index" in found.column_names:
            query = found["query_index"].to_numpy().astype(np.int64)
        order = np.lexsort((numbers, query))
        query, numbers = query[order], numbers[order]
        new = np.ones(len(order), bool)
        new[1:] = (query[1:] != query[:-1]) | (numbers[1:] != numbers[:-1])
        slots = np.arange(len(order)) - np.searchsorted(query, query)
        candidates = np.full((len(queries), wanted), -1)
        candidates[query[new], slots[new]] = np.flatnonzero(new)
        if not len(found):
            return candidates[:, :k], np.zeros((len(queries), k), np.float32), False
        best, scores = rescore(queries, as_vectors(found[VECTOR])[order], candidates, k)
        there = np.isfinite(scores)
        full = len(found) == wanted * len(queries)
        return np.where(there, numbers[np.maximum(best, 0)], -1), scores, full
