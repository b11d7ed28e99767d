"""The nearest of many embeddings by ScaNN, and the settings that reach a recall.

A tree splits the rows into leaves, each row in two of them, the second chosen to make up for what
the first misses (SOAR: Sun et al. 2023). A query goes through some leaves, in which four bits
encode every four numbers, and the best rows so far are compared again with eight bits per number.
So the memory is about 5/16 of that of float32.
"""

import contextlib
import io
import math
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from big_align.core.errors import UserError
from big_align.data import tensorflow_on_cpu
from big_align.use.search.stores.recall import K

LEAST = 16
"""With fewer rows, four bits have more values than there are rows to learn them from."""
DIMS_PER_BLOCK = 4
"""At 100,000 rows of 512, twice as fast as 2, and no worse once candidates are compared again."""
SOAR = 1.5
"""At 100,000 rows recall rose from 0.82 to 0.93 with the same number of leaves."""
TRAINED_ON = 100_000
SEARCHED = (0.005, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.25, 0.4, 0.6, 1.0)
REORDERED = (5, 10, 20, 40, 80)


class ScannSettings(NamedTuple):
    """The scope of a search."""

    leaves: int  # of the tree
    searched: int  # leaves that a query goes through
    reordered: int  # rows that are compared again, as a multiple of those that are wanted


def count_leaves(count: int) -> int:
    """Returns the number of leaves for `count` rows: its root, which makes a query cheapest."""
    return max(1, math.isqrt(count))


class ScannRows:
    """Rows that are ready to be searched."""

    def __init__(self, searcher: Any, settings: ScannSettings):
        self._searcher, self.settings = searcher, settings

    @classmethod
    def build(cls, vectors: Any) -> "ScannRows":
        """Trains the tree and the codes on rows [n d] of any float type.

        Their mean is subtracted: it adds the same to all dot products of a query, and without it
        the few bits distinguish rows that lie in a narrow cone, as embeddings of images do.
        """
        rows = np.array(vectors, np.float32)
        rows -= rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        leaves = count_leaves(len(rows))
        builder = load_scann().builder(rows, K, "dot_product")
        sample = min(len(rows), TRAINED_ON)
        builder = builder.tree(leaves, leaves, training_sample_size=sample, soar_lambda=SOAR)
        builder = builder.score_ah(DIMS_PER_BLOCK, training_sample_size=sample)
        builder = builder.reorder(K * REORDERED[-1], quantize=True)
        with contextlib.redirect_stdout(io.StringIO()):
            searcher = builder.build()
        return cls(searcher, ScannSettings(leaves, leaves, REORDERED[-1]))

    @classmethod
    def load(cls, folder: pathlib.Path, settings: ScannSettings) -> "ScannRows":
        """Loads what `save` wrote."""
        if (folder / "scann_docids.pkl").exists():  # a pickle can run anything
            raise UserError(f"{folder} holds a pickle, which this package never writes")
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                return cls(load_scann().load_searcher(str(folder)), settings)
        except (RuntimeError, ValueError, OSError) as error:
            raise UserError(
                f"{folder} cannot be read ({error}); remove the index and build it again"
            ) from error

    def save(self, folder: pathlib.Path) -> None:
        """Writes the rows into a folder, which may be moved afterwards."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._searcher.serialize(str(folder), relative_path=True)

    def list_settings(self) -> Iterator[Iterator[ScannSettings]]:
        """Yields settings to try, by the rows that are compared again."""
        leaves = self.settings.leaves
        for reordered in REORDERED:
            searched = (max(1, round(fraction * leaves)) for fraction in SEARCHED)
            yield (ScannSettings(leaves, each, reordered) for each in searched)

    def search(
        self, queries: Float[np.ndarray, "q d"], k: int, settings: ScannSettings | None = None
    ) -> Int[np.ndarray, "q k"]:
        """Returns the numbers of rows that are probably nearest; -1 if too few were found."""
        _, searched, reordered = settings or self.settings
        found, score = self._searcher.search_batched_parallel(
            np.ascontiguousarray(queries, np.float32), k, reordered * k, searched
        )
        return np.where(np.isfinite(score), found.astype(np.int64), -1)


def load_scann() -> Any:
    """Imports ScaNN; raises UserError where it is missing."""
    user, instead = "a search by ScaNN (for Linux only)", "build the index with --search=exact"
    return tensorflow_on_cpu.load(user, instead, "scann").scann_ops_pybind
