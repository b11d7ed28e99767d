"""Spherical k-means: unit-length centers that maximize the mean cosine of rows to their nearest.

Rows are streamed from disk; centers, their sums and counts are split over all devices. Each
iteration assigns every row (`nearest_centers`) and turns each center into the direction of the sum
of its rows, so the mean cosine never falls (Dhillon and Modha 2001), if assignments are exact; for
unit lengths this is eq. 2 of MLCD with centers of unit length.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from big_align.core.errors import UserError
from big_align.models.dual_encoder import normalize
from big_align.parallel.meshes import BATCH_AXES, batch_sharding, replicated, unsummed_sharding
from big_align.use.clusters import nearest_centers
from big_align.use.clusters.kmeans_init import (
    ROUNDING,
    refuse_not_finite,
    scale_rows,
    start_centers,
)
from big_align.use.clusters.nearest_centers import CenterLayout, Centers

RESEEDED_MAX = 2**16
"""The most empty clusters that get a new center in one iteration."""

SPARE = 64
"""Candidates for new centers beyond twice the number that is needed, since some may be equal."""

FEW, LITTLE = 10, 1e-3
"""Iterations, and the tolerance, that suffice where centers only divide rows."""


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


class Programs:
    """What the devices run, each compiled when it is first called."""

    def __init__(self, layout: CenterLayout, dim: int):
        mesh, whole = layout.mesh, replicated(layout.mesh)
        parts = unsummed_sharding(mesh)
        replicas = mesh.shape[BATCH_AXES[0]]

        def on_device(centers: Centers, x: Array, sums: Array, counts: Array) -> tuple:
            x = nearest_centers.collect_rows(x)
            cosine, label = (y[:, 0] for y in nearest_centers.nearest_of_all(x, centers, layout, 1))
            # Rows of other devices and absent rows get a place beyond the end: they are dropped.
            place = label - centers.first[0]
            own = (place >= 0) & (place < layout.part) & (x != 0).any(axis=1)
            place = jnp.where(own, place, layout.part)
            sums = sums.at[0, place].add(x, mode="drop")
            counts = counts.at[0, place].add(1, mode="drop")
            return tuple(map(nearest_centers.own_rows, (cosine, label))), sums, counts

        def assign(centers: Centers, sums: Array, counts: Array, x: Array) -> tuple:
            found, sums, counts = layout.run(on_device, centers, x, sums, counts)
            return sums, counts, found, found[0].sum()

        def move(centers: Array, sums: Array) -> Array:
            sums = jax.lax.with_sharding_constraint(sums.sum(axis=0), layout.placement)
            return jnp.where((sums != 0).any(axis=1, keepdims=True), normalize(sums), centers)

        def zeros() -> tuple[Array, Array]:
            sums = jnp.zeros((replicas, layout.rows, dim))
            return sums, jnp.zeros(sums.shape[:2], jnp.int32)

        def replace(centers: Array, places: Array, new: Array) -> Array:
            return centers.at[places].set(new, mode="drop")

        rows = batch_sharding(mesh)
        self.assign = jax.jit(
            assign, donate_argnums=(1, 2), out_shardings=(parts, parts, rows, whole)
        )
        self.move = jax.jit(move, donate_argnums=0, out_shardings=layout.placement)
        self.zeros = jax.jit(zeros, out_shardings=parts)
        self.count = jax.jit(lambda counts: counts.sum(axis=0), out_shardings=whole)
        self.collect = jax.jit(lambda found: found, out_shardings=whole)
        self.replace = jax.jit(replace, donate_argnums=0, out_shardings=layout.placement)


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
        chunk: int | None = None,
        candidates: int | None = None,
    ):
        self._rows, self._mesh = rows, mesh
        self._layout = CenterLayout(k, mesh, block, candidates)
        self._centers: Array | None = None
        self._chunk = nearest_centers.round_chunk(chunk, rows.count, mesh)
        self.programs = Programs(self._layout, rows.dim)

    def iterate(self, centers: Float[np.ndarray, "k d"], done: int = 0) -> Iterator[Iteration]:
        """Yields iterations endlessly, from unit-length centers that `done` of them have led to."""
        wanted = (self._layout.k, self._rows.dim)
        if centers.shape != wanted:
            raise UserError(f"the centers are {list(centers.shape)}, not {list(wanted)}")
        self._centers = self._layout.place(centers)
        while True:
            done += 1
            sums, counts, total, found = self._pass()
            counts = np.asarray(self.programs.count(counts))[: self._layout.k]
            self._centers = self.programs.move(self._centers, sums)
            empty = np.flatnonzero(counts == 0)
            if len(empty):
                self._reseed(empty, self._find_farthest(found), counts)
            objective = total / int(counts.sum())
            collect = functools.partial(self._layout.collect, self._centers)
            yield Iteration(done, objective, len(empty), collect)

    def _pass(self) -> tuple[Array, Array, float, list[tuple[Array, Array]]]:
        """Assigns all rows.

        Returns sums and counts of centers, the sum of cosines, and cosines and centers of the rows
        of each chunk, which stay on the devices.
        """
        centers, (sums, counts) = self._layout.prepare(self._centers), self.programs.zeros()
        found = []

        def begin() -> Iterator[Array]:
            nonlocal sums, counts
            for first in range(0, self._rows.count, self._chunk):
                x = nearest_centers.place_rows(self._rows, first, self._chunk, self._mesh)
                sums, counts, nearest, total = self.programs.assign(centers, sums, counts, x)
                found.append(nearest)
                yield total

        total = 0.0
        for number, part in enumerate(map(float, nearest_centers.one_ahead(begin()))):
            if not math.isfinite(part):
                cosine, *_ = self._read(number, found[number])
                first = number * self._chunk
                refuse_not_finite(cosine, self._rows, first + np.arange(len(cosine)))
            total += part
        return sums, counts, total, found

    def _read(self, number: int, found: tuple[Array, Array]) -> tuple[np.ndarray, np.ndarray]:
        """Returns cosines and centers of the rows of a chunk, on every process."""
        end = self._rows.count - number * self._chunk
        cosine, label = (np.asarray(y)[:end] for y in self.programs.collect(found))
        return cosine, label

    def _find_farthest(self, found: list[tuple[Array, Array]]) -> Farthest:
        farthest = Farthest(min(self._layout.k, RESEEDED_MAX))
        for number, nearest in enumerate(found):
            cosine, label = self._read(number, nearest)
            # An absent row has a cosine of 0 with every center; it is no candidate.
            cosine = np.where(cosine == 0, 1, cosine)
            farthest.see(cosine, number * self._chunk + np.arange(len(cosine)), label)
        return farthest

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
        self._centers = self.programs.replace(self._centers, places, new)


def has_converged(objectives: Sequence[float], empty: int, tolerance: float) -> bool:
    """Returns whether the last iteration gained little and left nothing to reseed.

    Little is a gain of at most a `tolerance` of what the mean cosine lacks to 1.
    """
    if len(objectives) < 2 or empty:
        return False
    before, last = objectives[-2:]
    return last - before <= tolerance * (1 - before)


def approximate_centers(rows: Any, k: int, mesh: Mesh) -> Float[np.ndarray, "k d"]:
    """Returns the centers that a few iterations find, to divide rows by."""
    means, gains = SphericalKMeans(rows, k, mesh), []
    for done in means.iterate(start_centers(rows, k, "kmeans++", mesh)):
        gains.append(done.objective)
        if len(gains) == FEW or has_converged(gains, done.empty, LITTLE):
            break
    return done.centers()
