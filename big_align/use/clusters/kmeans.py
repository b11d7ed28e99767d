"""Spherical k-means: unit-length centers that maximize the mean cosine of rows to their nearest.

Rows are streamed from disk; centers, their sums and counts are split over all devices. Each
iteration assigns every row (`nearest_centers`) and turns each center into the direction of the sum
of its rows, so the mean cosine never falls (Dhillon and Modha 2001), if assignments are exact; for
unit lengths this is eq. 2 of MLCD with centers of unit length.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from big_align.core.errors import UserError
from big_align.models.dual_encoder import normalize
from big_align.parallel.meshes import batch_sharding, replicated
from big_align.parallel.shards import map_rows
from big_align.use.clusters import nearest_centers
from big_align.use.clusters.kmeans_init import ROUNDING, refuse_not_finite, scale_rows
from big_align.use.clusters.nearest_centers import CHUNK, CenterLayout

RESEEDED_MAX = 2**16
"""The most empty clusters that get a new center in one iteration."""

SPARE = 64
"""Candidates for new centers beyond twice the number that is needed, since some may be equal."""


class Iteration(NamedTuple):
    """What one iteration did."""

    number: int  # counted from 1
    objective: float  # the mean cosine of rows to the nearest of the centers that it began with
    empty: int  # clusters without a row; they were given new centers
    # Collects the centers that it ended with, on the host; to be called by every process.
    centers: Callable[[], Float[np.ndarray, "k d"]]


class Farthest:
    """The rows farthest from their centers, of those seen so far; ties by their numbers."""

    def __init__(self, size: int):
        self._size = size
        self.cosine = np.zeros(0, np.float32)
        self.number = np.zeros(0, np.int64)
        self.label = np.zeros(0, np.int32)

    def see(
        self,
        cosine: Float[np.ndarray, " n"],
        number: Int[np.ndarray, " n"],
        label: Int[np.ndarray, " n"],
    ) -> None:
        """Takes rows into account, in the order of their numbers."""
        if len(self.cosine) == self._size:
            near = cosine < self.cosine[-1]  # an equal one has a larger number
            if not near.any():
                return
            cosine, number, label = cosine[near], number[near], label[near]
        joined = [np.concatenate(pair) for pair in (
            (self.cosine, cosine), (self.number, number), (self.label, label)
        )]  # fmt: skip
        order = np.argsort(joined[0], kind="stable")[: self._size]
        self.cosine, self.number, self.label = (values[order] for values in joined)


class SphericalKMeans:
    """Iterations of k-means over rows that are streamed.

    Rows have `count`, `dim`, `absent`, `read(first, end)`, `take(numbers)` and `name(number)`;
    those of any length count by their direction, and those of zeros do not count. With
    `candidates`, a row may be assigned to a center that is nearest only up to the rounding of
    bfloat16.
    """

    def __init__(
        self,
        rows: Any,
        k: int,
        mesh: Mesh,
        block: int | None = None,
        chunk: int = CHUNK,
        candidates: int | None = None,
    ):
        self._rows, self._mesh = rows, mesh
        self._layout = CenterLayout(k, mesh, block)
        self._centers: Array | None = None
        self._chunk = nearest_centers.round_chunk(chunk, rows.count, mesh)
        self._compile(candidates)

    def _compile(self, candidates: int | None) -> None:
        mesh, layout = self._mesh, self._layout

        def assign(_: tuple, rows: tuple[Array, ...]) -> tuple[Array, ...]:
            centers, sums, counts, x = rows
            x = nearest_centers.collect_rows(x)
            found = nearest_centers.nearest_of_all(x, centers, layout, 1, candidates)
            cosine, label = (y[:, 0] for y in found)
            # Rows of other devices and absent rows get a place beyond the end: they are dropped.
            place = label - layout.first()
            own = (place >= 0) & (place < layout.part) & (x != 0).any(axis=1)
            place = jnp.where(own, place, layout.part)
            sums = sums.at[place].add(x, mode="drop")
            counts = counts.at[place].add(1, mode="drop")
            return sums, counts, *map(nearest_centers.own_rows, (cosine, label))

        def move(centers: Array, sums: Array) -> Array:
            return jnp.where((sums != 0).any(axis=1, keepdims=True), normalize(sums), centers)

        split, whole = batch_sharding(mesh), replicated(mesh)
        self._assign = jax.jit(
            lambda *rows: map_rows(assign, (), rows, mesh),
            donate_argnums=(1, 2),
            out_shardings=(split, split, whole, whole),
        )
        self._move = jax.jit(move, donate_argnums=0, out_shardings=split)
        self._zeros = jax.jit(
            lambda: (
                jnp.zeros((layout.rows, self._rows.dim)), jnp.zeros(layout.rows, jnp.int32)
            ),
            out_shardings=(split, split),
        )  # fmt: skip
        self._collect = jax.jit(lambda x: x, out_shardings=whole)
        self._replace = jax.jit(
            lambda centers, places, new: centers.at[places].set(new, mode="drop"),
            donate_argnums=0,
            out_shardings=split,
        )

    def iterate(self, centers: Float[np.ndarray, "k d"], done: int = 0) -> Iterator[Iteration]:
        """Yields iterations endlessly, from unit-length centers that `done` of them have led to."""
        wanted = (self._layout.k, self._rows.dim)
        if centers.shape != wanted:
            raise UserError(f"the centers are {list(centers.shape)}, not {list(wanted)}")
        self._centers = self._layout.place(centers)
        while True:
            done += 1
            sums, counts, total, farthest = self._pass()
            counts = np.asarray(self._collect(counts))[: self._layout.k]
            self._centers = self._move(self._centers, sums)
            empty = np.flatnonzero(counts == 0)
            if len(empty):
                self._reseed(empty, farthest, counts)
            objective = total / int(counts.sum())
            collect = functools.partial(self._layout.collect, self._centers)
            yield Iteration(done, objective, len(empty), collect)

    def _pass(self) -> tuple[Array, Array, float, Farthest]:
        """Assigns all rows: sums and counts of centers, the sum of cosines, the farthest rows."""
        sums, counts = self._zeros()
        total, farthest = 0.0, Farthest(min(self._layout.k, RESEEDED_MAX))

        def begin() -> Iterator[tuple[int, Array, Array]]:
            nonlocal sums, counts
            for first in range(0, self._rows.count, self._chunk):
                x = nearest_centers.place_rows(self._rows, first, self._chunk, self._mesh)
                sums, counts, cosine, label = self._assign(self._centers, sums, counts, x)
                yield first, cosine, label

        for first, *found in nearest_centers.one_ahead(begin()):
            cosine, label = (np.asarray(y)[: self._rows.count - first] for y in found)
            numbers = np.arange(first, first + len(cosine))
            refuse_not_finite(cosine, self._rows, numbers)
            total += float(cosine.sum(dtype=np.float64))
            # An absent row has a cosine of 0 with every center; it is no candidate.
            cosine = np.where(cosine == 0, 1, cosine)
            farthest.see(cosine, numbers, label)
        return sums, counts, total, farthest

    def _reseed(
        self, empty: Int[np.ndarray, " e"], farthest: Farthest, counts: Int[np.ndarray, " k"]
    ) -> None:
        """Gives empty clusters the rows that are farthest from their centers, the farthest first.

        No cluster gives up its last row; rows that equal one already taken are skipped, and so are
        rows that are at their center, since their cluster would stay empty.
        """
        left, numbers = counts.copy(), []
        for number, label, cosine in zip(
            farthest.number.tolist(), farthest.label.tolist(), farthest.cosine.tolist(), strict=True
        ):
            if left[label] > 1 and 2 - 2 * cosine > ROUNDING:
                left[label] -= 1
                numbers.append(number)
        numbers = np.array(numbers[: 2 * len(empty) + SPARE], np.int64)
        found = scale_rows(self._rows.take(numbers))
        new = {row.tobytes(): row for row in found}
        new = np.array(list(new.values())[: len(empty)], np.float32).reshape(-1, self._rows.dim)
        # Powers of two, so that few programs are compiled. The padding goes beyond the end.
        size = 1 << max(len(new) - 1, 0).bit_length()
        places = np.full(size, self._layout.rows, np.int32)
        places[: len(new)] = empty[: len(new)]
        new = np.pad(new, ((0, size - len(new)), (0, 0)))
        self._centers = self._replace(self._centers, places, new)


def has_converged(objectives: Sequence[float], empty: int, tolerance: float) -> bool:
    """Returns whether the last iteration gained little and left nothing to reseed.

    Little is a gain of at most a `tolerance` of what the mean cosine lacks to 1.
    """
    if len(objectives) < 2 or empty:
        return False
    before, last = objectives[-2:]
    return last - before <= tolerance * (1 - before)
