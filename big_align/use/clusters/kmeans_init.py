"""Starting points of k-means: examples drawn evenly, or by k-means++.

k-means++ (Arthur and Vassilvitskii 2007) draws each center with a probability in proportion to the
squared distance to those before it. Taken literally, that is k passes over the data. Here many are
proposed at once from distances that are out of date, and each is accepted with a probability, the
ratio of its distance now to the old one: this is rejection sampling, so the centers have the
distribution of k-means++ itself, in about k / 4096 passes over a sample that the devices hold.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from big_align.core.errors import UserError, check_known
from big_align.parallel.batches import place_batch, process_rows
from big_align.parallel.meshes import replicated
from big_align.parallel.shards import map_rows
from big_align.use.clusters.nearest_centers import place_rows

STARTS = ("kmeans++", "sampled")
PROPOSED_MIN, PROPOSED_MAX = 64, 4096
SAMPLE_MIN, SAMPLE_PER_CENTER = 2**16, 4
ROWS = 1024
"""Rows of the sample that are compared with new centers at a time."""

ROUNDING = 1e-6
"""Squared distances below this are due to rounding."""


class Sample:
    """Rows in memory, with the interface of a folder of embeddings on disk; zeros mean none."""

    def __init__(self, values: Float[np.ndarray, "n d"]):
        self.values = values
        self.count, self.dim = values.shape
        self.absent = int((~values.any(axis=1)).sum())

    def read(self, first: int, end: int) -> Float[np.ndarray, "m d"]:
        """Returns rows [first, end)."""
        return self.values[first:end]

    def take(self, numbers: Int[np.ndarray, " m"]) -> Float[np.ndarray, "m d"]:
        """Returns chosen rows."""
        return self.values[numbers]

    def name(self, number: int) -> str:
        """Names a row for messages."""
        return f"row {number}"


class DrawnRows:
    """Rows of a folder that are drawn evenly, without putting back, and read when needed.

    As many more as are absent are drawn, so at least `count` are there.
    """

    def __init__(self, rows: Any, count: int, seed: int):
        self._rows, self.dim, self.absent = rows, rows.dim, rows.absent
        self.count = min(count + rows.absent, rows.count)
        rng = np.random.default_rng(seed)
        self._numbers = np.sort(rng.choice(rows.count, self.count, replace=False, shuffle=False))

    def read(self, first: int, end: int) -> Float[np.ndarray, "m d"]:
        """Reads rows [first, end) of those drawn."""
        return self._rows.take(self._numbers[first:end])

    def take(self, numbers: Int[np.ndarray, " m"]) -> Float[np.ndarray, "m d"]:
        """Reads chosen rows of those drawn."""
        return self._rows.take(self._numbers[numbers])

    def name(self, number: int) -> str:
        """Names a row, as the folder does."""
        return self._rows.name(int(self._numbers[number]))


def scale_rows(rows: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """Scales rows to unit length in float32; rows of zeros stay zeros."""
    rows = np.float32(rows)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length == 0, 1, length)


def refuse_not_finite(
    values: Float[np.ndarray, " n"], rows: Any, numbers: Int[np.ndarray, " n"]
) -> None:
    """Raises a UserError that names the first row for which a value is not finite."""
    strange = np.flatnonzero(~np.isfinite(values))
    if len(strange):
        raise UserError(f"the embedding of {rows.name(int(numbers[strange[0]]))} is not finite")


def start_centers(
    rows: Any, k: int, start: str, mesh: Mesh, seed: int = 0
) -> Float[np.ndarray, "k d"]:
    """Chooses k of the rows as centers; the same for the same arguments on any devices.

    "sampled" draws evenly, "kmeans++" from a sample of 4 k rows and at least 65,536.
    """
    check_known("start", start, STARTS)
    if not 1 <= k <= rows.count - rows.absent:
        raise UserError(f"k = {k}, but there are {rows.count - rows.absent} embeddings: lower k")
    rng = np.random.default_rng(seed)
    size = k if start == "sampled" else count_sample(rows.count, k)
    # Absent rows are known only when they are read, so their number is drawn in addition.
    size = min(size + rows.absent, rows.count)
    drawn = np.sort(rng.choice(rows.count, size, replace=False, shuffle=False))
    sample = scale_rows(rows.take(drawn))
    refuse_not_finite(sample.sum(axis=1), rows, drawn)
    sample = sample[sample.any(axis=1)]
    if start == "sampled":
        return sample[np.sort(rng.choice(len(sample), k, replace=False))]
    return sample[draw_plus_plus(sample, k, mesh, rng)]


def count_sample(rows: int, k: int) -> int:
    """Returns of how many rows k-means++ chooses k centers."""
    return min(max(SAMPLE_PER_CENTER * k, SAMPLE_MIN), rows)


def draw_plus_plus(
    sample: Float[np.ndarray, "n d"], k: int, mesh: Mesh, rng: np.random.Generator
) -> Int[np.ndarray, " k"]:
    """Draws k different rows as k-means++ does; returns their numbers in the order of the draws.

    The sample has unit-length rows, all in memory, and on the devices in equal parts.
    """
    distances = SampleDistances(sample, mesh)
    chosen = [int(rng.integers(len(sample)))]
    distance = distances.after(sample[chosen])
    while len(chosen) < k:
        total = np.cumsum(distance, dtype=np.float64)
        if total[-1] <= 0:  # what is left equals centers: any will do
            rest = np.setdiff1d(np.arange(len(sample)), chosen)
            return np.array([*chosen, *rest[: k - len(chosen)].tolist()])
        number = int(np.clip(2 * (k - len(chosen)), PROPOSED_MIN, PROPOSED_MAX))
        places = np.searchsorted(total, rng.random(number) * total[-1], side="right")
        proposed = np.minimum(places, len(sample) - 1)
        accepted = _accept(sample[proposed], distance[proposed], rng.random(number))
        new = proposed[accepted][: k - len(chosen)].tolist()
        chosen += new
        distance = distances.after(sample[new])
    return np.array(chosen)


def _accept(
    rows: Float[np.ndarray, "m d"], distance: Float[np.ndarray, " m"], draw: np.ndarray
) -> Int[np.ndarray, " a"]:
    """Accepts proposals one by one, with probability (distance now) / (distance when proposed)."""
    apart = _distance(rows @ rows.T)
    now, accepted = distance.copy(), []
    for number in range(len(rows)):
        if draw[number] * distance[number] < now[number]:
            accepted.append(number)
            np.minimum(now, apart[number], out=now)
    return np.array(accepted, np.int64)


class SampleDistances:
    """The squared distance of every row of a sample to the nearest center so far."""

    def __init__(self, sample: Float[np.ndarray, "n d"], mesh: Mesh):
        self._count = len(sample)
        size, block = round_sample(len(sample), mesh)
        self._sample = place_rows(Sample(sample), 0, size, mesh)
        mine = len(process_rows(mesh, size))
        nothing = {"cosine": np.full(mine, -1, np.float32)}
        self._cosine = place_batch(nothing, mesh)["cosine"]
        self._update, self._collect = compile_distances(mesh, block)

    def after(self, new: Float[np.ndarray, "m d"]) -> Float[np.ndarray, " n"]:
        """Takes new centers into account; returns the distances on every process."""
        # Powers of two, so that few programs are compiled.
        filled = np.resize(np.arange(len(new)), 1 << (len(new) - 1).bit_length())
        self._cosine = self._update(new[filled], self._sample, self._cosine)
        return _distance(np.asarray(self._collect(self._cosine))[: self._count])


def round_sample(count: int, mesh: Mesh) -> tuple[int, int]:
    """Returns the rows of a sample with padding, and how many a device compares at a time."""
    part = -(-count // mesh.size)
    block = min(ROWS, part)
    return -(-part // block) * block * mesh.size, block


@functools.cache
def compile_distances(mesh: Mesh, block: int) -> tuple[Any, Callable[[Array], Array]]:
    """Returns functions that take new centers into account and collect cosines, compiled lazily."""

    def on_device(new: Array, rows: tuple[Array, Array]) -> Array:
        def compare(x: Array) -> Array:
            return jnp.matmul(x, new.T, precision="highest").max(axis=1)

        blocks = rows[0].reshape(-1, block, rows[0].shape[1])
        return jnp.maximum(rows[1], jax.lax.map(compare, blocks).reshape(-1))

    update = jax.jit(
        lambda new, sample, cosine: map_rows(on_device, new, (sample, cosine), mesh),
        donate_argnums=2,
    )
    return update, jax.jit(lambda x: x, out_shardings=replicated(mesh))


def _distance(cosine: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Returns squared distances of unit-length rows, 0 if they differ only by rounding."""
    distance = 2 - 2 * cosine
    return np.where(distance < ROUNDING, 0, distance)
