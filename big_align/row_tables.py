"""Class centers: a table split over all devices, of which a step draws and changes a few rows.

Row i of the whole table is class i; device p holds the p-th of equal runs of rows, and the last
rows are padding. A step draws, on every device, the centers that are positive for some example,
however many they are, and a share of the others as negatives. It gathers them, differentiates with
respect to them, and updates them in place: time and memory are those of the drawn rows.

A row that is not drawn does not change at all: neither its moments nor its decay go on, and it
counts its own updates for the correction of their bias. So a row behaves as if the steps in which
it is away did not exist, and when all rows are drawn in every step the update is the dense one.
(PartialFC, An et al. 2022, samples rows in the same way, but fills a quota of fixed size.)
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from big_align import sharding
from big_align.errors import UserError
from big_align.losses.sampled_cluster_discrimination import BLOCK

ROW_OPTIMIZERS = ("adamw", "sgd")


class Table(NamedTuple):
    """Rows that are updated sparsely, and what their updates need; all split over all devices.

    Attributes:
      values: float32 [k_pad d].
      mu: float32 [k_pad d], first moments.
      nu: float32 [k_pad d], second moments; None where the optimizer has none.
      count: int32 [k_pad], updates that a row has had.
    """

    # Fields are arrays, or what a transformed tree has in their place: shapes, placements.
    values: Any
    mu: Any
    nu: Any
    count: Any


class Drawn(NamedTuple):
    """The rows that a step works with; each device draws equally many places from its own shard.

    Attributes:
      ids: where the row lies in the shard of its device; beyond it where `mask` is False.
      mask: True where a row was drawn; such rows are distinct.
      columns: the place [0, n) of each label's row, -1 for none; on every device.
      rows: the values; what `mask` hides is arbitrary.
    """

    # Fields are arrays, or what a transformed tree has in their place: shapes, placements.
    ids: Any
    mask: Any
    columns: Any
    rows: Any


def pad_rows(num_rows: int, mesh: Mesh) -> int:
    """Returns the number of rows of a table with padding, a multiple of the number of devices."""
    return num_rows + -num_rows % mesh.size


def init_values(
    rng: PRNGKeyArray, num_rows: int, dim: int, mesh: Mesh
) -> Float[Array, "k_pad d"]:
    """Draws rows of random direction and about unit length, the same on any number of devices."""
    return jax.random.normal(rng, (pad_rows(num_rows, mesh), dim)) / math.sqrt(dim)


def place_centers(
    centers: Float[np.ndarray, "k width"], values: Float[Array, "k_pad d"], num_rows: int
) -> Float[Array, "k_pad d"]:
    """Lays given centers, for instance a memory-mapped file, out like the values of a table.

    Raises:
      UserError: there are not `num_rows` centers of the table's width.
    """
    wanted = (num_rows, values.shape[1])
    if centers.shape != wanted:
        raise UserError(
            f"the centers are {list(centers.shape)}, but the class table has "
            f"{wanted[0]} clusters of embeddings of {wanted[1]}: give centers of that shape, or "
            f"set config.objective.num_clusters and the embedding's size to theirs"
        )

    def read(index: tuple[slice, ...]) -> Float[np.ndarray, "r d"]:
        low, high, _ = index[0].indices(len(values))
        part = np.zeros((high - low, wanted[1]), values.dtype)
        real = np.asarray(centers[low : min(high, num_rows)])
        part[: len(real)] = real
        return part

    return jax.make_array_from_callback(values.shape, values.sharding, read)


def draw_rows(
    values: Float[Array, "k_pad d"],
    labels: Int[Array, "b l"],
    rng: PRNGKeyArray,
    *,
    num_rows: int,
    ratio: float,
    mesh: Mesh,
) -> Drawn:
    """Draws all positives of a batch and a share of the other rows, inside a compiled function.

    The others are a systematic sample: a device lays its n rows in a circle, cuts it at a random
    place into q runs as equal as can be, and takes one row of each. So a row is drawn with
    probability q / n, never twice, the time is that of q rows, and reading them goes through memory
    in order. A row that is positive for some example is not drawn again as one of these.

    Args:
      values: of the table.
      labels: rows of the table; a number outside [0, `num_rows`) is no label.
      rng: the key of the step; the same key draws the same rows on as many devices.
      num_rows: rows of the table without padding.
      ratio: share of the rows that is sampled, in [0, 1].
      mesh: the devices.
    """
    devices, local = mesh.size, len(values) // mesh.size
    ends = np.minimum(np.arange(devices + 1) * local, num_rows)
    # Rounded at the ends, so that all devices together draw as many as one would.
    quotas = np.diff(np.floor(ratio * ends + 0.5).astype(np.int32))
    real = np.diff(ends).astype(np.int32)
    capacity, quota = min(local, labels.size), int(quotas.max())
    width = capacity + quota
    width += -width % BLOCK if width > BLOCK else 0
    inside = jnp.where((labels >= 0) & (labels < num_rows), labels, -1)
    inside = jnp.pad(inside, ((0, -len(labels) % devices), (0, 0)), constant_values=-1)

    def draw(split: tuple, rng: PRNGKeyArray) -> tuple:
        values, labels = split
        device = jax.lax.axis_index(sharding.BATCH_AXES)
        labels = jax.lax.all_gather(labels, sharding.BATCH_AXES, tiled=True)
        here = (labels >= device * local) & (labels < (device + 1) * local)
        labels = jnp.where(here, labels - device * local, local)
        positives = jnp.unique(labels, size=capacity, fill_value=local).astype(jnp.int32)
        key = jax.random.fold_in(rng, device)
        sampled, drawn = _sample(key, jnp.array(real)[device], jnp.array(quotas)[device], quota)
        drawn &= positives[_find(positives, sampled)] != sampled
        ids = jnp.concatenate([positives, jnp.where(drawn, sampled, local)])
        ids = jnp.pad(ids, (0, width - len(ids)), constant_values=local)
        columns = jnp.where(here, device * width + _find(positives, labels), -1)
        columns = jax.lax.pmax(columns, sharding.BATCH_AXES)
        return (ids, ids < local, values.at[ids].get(mode="clip")), columns

    (ids, mask, rows), columns = sharding.map_shards(draw, (values, inside), rng, mesh)
    return Drawn(ids, mask, columns[: len(labels)], rows)


def _find(ordered: Int[Array, " n"], wanted: Int[Array, "..."]) -> Int[Array, "..."]:
    """Returns where the wanted numbers stand; somewhere inside, for one that is not there."""
    return jnp.minimum(jnp.searchsorted(ordered, wanted), len(ordered) - 1).astype(jnp.int32)


def _sample(
    rng: PRNGKeyArray, rows: Int[Array, ""], quota: Int[Array, ""], size: int
) -> tuple[Int[Array, " q"], Bool[Array, " q"]]:
    """Samples `quota` of the first `rows` rows, systematically.

    Returns:
      So many rows and, as `size` may be more, which of them are drawn.
    """
    cut_rng, run_rng = jax.random.split(rng)
    rows = jnp.maximum(rows, 1)
    run, length = jnp.arange(size, dtype=jnp.int32), rows // jnp.maximum(quota, 1)
    longer = rows - length * quota  # so many runs have one row more
    start = run * length + jnp.minimum(run, longer)
    lengths = jnp.maximum(length + (run < longer), 1)
    cut = jax.random.randint(cut_rng, (), 0, rows)
    chosen = (cut + start + jax.random.randint(run_rng, (size,), 0, lengths)) % rows
    return chosen.astype(jnp.int32), run < quota


class RowOptimizer(NamedTuple):
    """How drawn rows are updated; the arguments are those of `optim.make_optimizer`.

    Attributes:
      name: "adamw" or "sgd".
      weight_decay: as there: decoupled in AdamW, added to the gradient in SGD.
      b1: of "adamw".
      b2: of "adamw".
      eps: of "adamw".
      momentum: of "sgd".
      nesterov: of "sgd".
    """

    name: str = "adamw"
    weight_decay: float = 0.0
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-6
    momentum: float = 0.9
    nesterov: bool = False

    def init(self, values: Float[Array, "k_pad d"]) -> Table:
        """Makes a table whose rows have had no update.

        Raises:
          UserError: there is no row-sparse optimizer of this name.
        """
        if self.name not in ROW_OPTIMIZERS:
            raise UserError(
                f"config.optimizer.name = {self.name!r} cannot update the rows of a class table; "
                f"use one of {', '.join(ROW_OPTIMIZERS)}"
            )
        nu = None if self.name == "sgd" else jnp.zeros_like(values)
        return Table(values, jnp.zeros_like(values), nu, jnp.zeros(len(values), jnp.int32))

    def update(
        self,
        table: Table,
        drawn: Drawn,
        grads: Float[Array, "n d"],
        learning_rate: Float[Array, ""],
        mesh: Mesh,
    ) -> Table:
        """Updates the drawn rows, in place where the table is donated to a compiled function.

        Args:
          table: from which the rows were drawn.
          drawn: its rows.
          grads: gradients with respect to `drawn.rows`.
          learning_rate: of this step.
          mesh: the devices.

        Returns:
          The table; all rows but the drawn ones are the same bit for bit.
        """

        def update(split: tuple, learning_rate: Float[Array, ""]) -> tuple:
            table, ids, grads = split
            size = min(BLOCK, len(ids))
            padding = -len(ids) % size
            ids = jnp.pad(ids, (0, padding), constant_values=len(table.count)).reshape(-1, size)
            grads = jnp.pad(grads, ((0, padding), (0, 0))).reshape(-1, size, grads.shape[1])

            def step(table: Table, block: tuple) -> tuple[Table, None]:
                ids, grads = block
                rows = jax.tree.map(lambda x: x.at[ids].get(mode="clip"), table)
                rows = self._update_block(rows, grads, learning_rate)
                put = lambda x, new: x.at[ids].set(new, mode="drop")  # noqa: E731
                return jax.tree.map(put, table, rows), None

            return jax.lax.scan(step, table, (ids, grads))[0], ()

        return sharding.map_shards(update, (table, drawn.ids, grads), learning_rate, mesh)[0]

    def _update_block(
        self, rows: Table, grads: Float[Array, "r d"], learning_rate: Float[Array, ""]
    ) -> Table:
        values, mu, nu, count = rows
        count = count + 1
        if self.name == "sgd":
            grads = grads + self.weight_decay * values
            mu = grads + self.momentum * mu
            update = grads + self.momentum * mu if self.nesterov else mu
        else:
            mu = self.b1 * mu + (1 - self.b1) * grads
            nu = self.b2 * nu + (1 - self.b2) * grads * grads
            steps = count[:, None].astype(jnp.float32)
            seen_mu, seen_nu = (1 - b**steps for b in (self.b1, self.b2))
            update = (mu / seen_mu) / (jnp.sqrt(nu / seen_nu) + self.eps)
            update += self.weight_decay * values
        return Table(values - learning_rate * update, mu, nu, count)


def split_rows(drawn: Mapping[str, Drawn]) -> dict[str, Float[Array, "n d"]]:
    """Returns of each table what a step differentiates with respect to: the drawn rows."""
    return {name: each.rows for name, each in drawn.items()}


def join_rows(drawn: Mapping[str, Drawn], rows: Mapping[str, Array]) -> dict[str, Drawn]:
    """Puts rows, as seen by a derivative, back in their places."""
    return {name: each._replace(rows=rows[name]) for name, each in drawn.items()}
