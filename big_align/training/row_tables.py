"""Class centers: a table split over all devices, of which a step draws and changes a few rows.

Row i of the whole table is class i; device p holds the p-th of equal runs of rows, and the last
rows are padding. On every device, a step draws the centers that are positive for some example,
however many they are, and a fraction of the others as negatives. It gathers them, differentiates
with respect to them, and updates them in place, so time and memory are those of the drawn rows.

Each row has an optimizer state of its own, so any elementwise transformation of optax can update
it. A row that is not drawn does not change at all: neither its moments nor its decay advance, and
its bias correction counts its own updates only. So a row behaves as if the steps in which it was
not drawn did not exist, and when all rows are drawn in every step, the update is the dense one.
(PartialFC, An et al. 2022, samples rows in the same way, but fills a quota of fixed size.)
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from big_align.core.errors import UserError
from big_align.losses.blocks import count_blocks
from big_align.losses.sampled_cluster_discrimination import BLOCK
from big_align.parallel.shards import Shards, locate_rows
from big_align.training.row_samples import Sampling


class Table(NamedTuple):
    """Rows that are updated sparsely, and what their updates need; both split over all devices."""

    # Fields are arrays, or what replaces them in a transformed tree: shapes, placements.
    values: Any  # float32 [k_pad d]
    state: Any  # that of the optimizer, a pytree of arrays [k_pad ...]


class Drawn(NamedTuple):
    """The rows that a step works with: on every device, the same number of slots of its shard."""

    # Fields are arrays, or what replaces them in a transformed tree: shapes, placements.
    ids: Any  # the numbers of the rows in the table, all distinct; -1 where nothing was drawn
    columns: Any  # the slot [0, n) of each label's row, -1 for none; whole on every device
    rows: Any  # arbitrary where nothing was drawn
    sampled: Any  # whether a row is in the random sample, be it a label's row or not

    @property
    def mask(self) -> Bool[Array, " n"]:
        """True where a row was drawn."""
        return self.ids >= 0


def pad_rows(num_rows: int, mesh: Mesh) -> int:
    """Returns the number of rows of a table with padding, a multiple of the number of devices."""
    return num_rows + -num_rows % mesh.size


def init_values(rng: PRNGKeyArray, num_rows: int, dim: int, mesh: Mesh) -> Float[Array, "k_pad d"]:
    """Draws rows of random direction and about unit length, the same on any number of devices."""
    return jax.random.normal(rng, (pad_rows(num_rows, mesh), dim)) / math.sqrt(dim)


def place_centers(
    centers: Float[np.ndarray, "k width"], values: Float[Array, "k_pad d"], num_rows: int
) -> Float[Array, "k_pad d"]:
    """Lays out given centers, for instance a memory-mapped file, like the values of a table."""
    wanted = (num_rows, values.shape[1])
    if centers.shape != wanted:
        raise UserError(
            f"the centers are {list(centers.shape)}, but the class table has "
            f"{wanted[0]} clusters of embeddings of {wanted[1]}: give centers of that shape, or "
            f"set config.objective.num_clusters and the embedding's size to theirs"
        )

    def read(index: Any) -> Float[np.ndarray, "r d"]:
        low, high, _ = index[0].indices(len(values))
        part = np.zeros((high - low, wanted[1]), values.dtype)
        real = np.asarray(centers[low : min(high, num_rows)])
        part[: len(real)] = real
        return part

    return jax.make_array_from_callback(values.shape, values.sharding, read)


def draw_rows(
    values: Float[Array, "k_pad d"],
    labels: Int[Array, "b p"],
    rng: PRNGKeyArray,
    *,
    num_rows: int,
    ratio: float,
    mesh: Mesh,
) -> Drawn:
    """Draws all positives of a batch and a sample of all rows, inside a compiled function.

    Every row, positive or not, is sampled with probability `ratio` (`row_samples.Sampling`), on any
    number of devices. So a sum over the sample is on average `ratio` times that over the table. The
    time is that of the sampled rows, which are read from memory in order. A row that is both
    positive and sampled is drawn once. A number outside [0, `num_rows`) is not a label.
    """
    devices, local = mesh.size, len(values) // mesh.size
    sampling = Sampling(num_rows, ratio)
    capacity, quota = min(local, labels.size), sampling.bound(local)
    width = capacity + quota
    width += -width % BLOCK if width > BLOCK else 0
    inside = jnp.where((labels >= 0) & (labels < num_rows), labels, -1)
    inside = jnp.pad(inside, ((0, -len(labels) % devices), (0, 0)), constant_values=-1)

    shards = Shards.over(mesh)

    def draw(split: tuple, rng: PRNGKeyArray) -> tuple:
        values, labels = split
        device = shards.index()
        labels = locate_rows(shards.gather(labels), device * local, local)
        positives = jnp.unique(labels, size=capacity, fill_value=local).astype(jnp.int32)
        sampled = sampling.sample(rng, device * local, local)
        found = _find(positives, sampled)
        both = (sampled < local) & (positives[found] == sampled)
        drawn = (sampled < local) & ~both
        places = jnp.concatenate([positives, jnp.where(drawn, sampled, local)])
        places = jnp.pad(places, (0, width - len(places)), constant_values=local)
        columns = jnp.where(labels < local, device * width + _find(positives, labels), -1)
        ids = jnp.where(places < local, device * local + places, -1)
        marks = jnp.pad(drawn, (capacity, width - capacity - quota))
        marks = marks.at[jnp.where(both, found, width)].set(True, mode="drop")
        return (ids, values.at[places].get(mode="clip"), marks), shards.max(columns)

    (ids, rows, marks), columns = shards.run(draw, (values, inside), rng)
    return Drawn(ids, columns[: len(labels)], rows, marks)


def _find(ordered: Int[Array, " n"], wanted: Int[Array, "..."]) -> Int[Array, "..."]:
    """Returns the indices of the wanted numbers; any valid index for a number that is not there."""
    return jnp.minimum(jnp.searchsorted(ordered, wanted), len(ordered) - 1).astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class RowOptimizer:
    """Updates drawn rows by an elementwise transformation of optax, each row on its own."""

    transformation: optax.GradientTransformation  # makes a row's increment at a learning rate of 1
    name: str = "custom"  # for messages

    def init(self, values: Float[Array, "k_pad d"]) -> Table:
        """Makes a table whose rows have had no update."""
        if not self._is_elementwise():
            raise UserError(
                f"config.optimizer.name = {self.name!r} cannot update the rows of a class table, "
                f"because an element's update depends on the others; use an elementwise "
                f"optimizer, such as adamw or sgd"
            )
        return Table(values, jax.vmap(self.transformation.init)(values))

    def update(
        self,
        table: Table,
        drawn: Drawn,
        grads: Float[Array, "n d"],
        learning_rate: Float[Array, ""],
        mesh: Mesh,
    ) -> Table:
        """Updates the drawn rows, in place where the table is donated to a compiled function.

        All other rows stay the same bit for bit. `grads` are with respect to `drawn.rows`.
        """
        shards = Shards.over(mesh)
        arrays = sum(x.ndim > 1 for x in jax.tree.leaves(table))
        # A block of them has as many numbers as one of logits.
        blocks = count_blocks(len(drawn.ids), arrays * grads.shape[1], shards, None, BLOCK)
        update_rows = jax.vmap(self.transformation.update)

        def update(split: tuple, learning_rate: Float[Array, ""]) -> tuple:
            table, ids, grads = split
            size, local = max(math.ceil(len(ids) / blocks), 1), len(table.values)
            padding = -len(ids) % size
            places = locate_rows(ids, shards.index() * local, local)
            places = jnp.pad(places, (0, padding), constant_values=local).reshape(-1, size)
            grads = jnp.pad(grads, ((0, padding), (0, 0))).reshape(-1, size, grads.shape[1])

            def step(table: Table, block: tuple) -> tuple[Table, None]:
                places, grads = block
                rows = jax.tree.map(lambda x: x.at[places].get(mode="clip"), table)
                updates, state = update_rows(grads, rows.state, rows.values)
                rows = Table(rows.values + learning_rate * updates, state)
                put = lambda x, new: x.at[places].set(new, mode="drop")  # noqa: E731
                return jax.tree.map(put, table, rows), None

            return jax.lax.scan(step, table, (places, grads))[0], ()

        return shards.run(update, (table, drawn.ids, grads), learning_rate)[0]

    def _is_elementwise(self) -> bool:
        """Returns whether updating two elements together gives the same as updating each alone."""

        def update(row: Float[Array, " d"], grad: Float[Array, " d"]) -> Float[Array, " d"]:
            return self.transformation.update(grad, self.transformation.init(row), row)[0]

        with jax.ensure_compile_time_eval():
            row, grad = jnp.array([0.5, -2.0]), jnp.array([1.0, 3.0])
            apart = jax.vmap(update)(row[:, None], grad[:, None])[:, 0]
            return bool(jnp.allclose(update(row, grad), apart, rtol=1e-4))


def split_rows(drawn: Mapping[str, Drawn]) -> dict[str, Float[Array, "n d"]]:
    """Returns the rows of each table that a step differentiates with respect to."""
    return {name: each.rows for name, each in drawn.items()}


def join_rows(drawn: Mapping[str, Drawn], rows: Mapping[str, Array]) -> dict[str, Drawn]:
    """Puts rows, as seen by a derivative, back into the drawn ones."""
    return {name: each._replace(rows=rows[name]) for name, each in drawn.items()}
