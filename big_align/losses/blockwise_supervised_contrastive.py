"""Supervised contrast in blocks of rows over the devices of a mesh.

The same numbers and gradients as `supervised_contrastive.supervised_contrastive_loss`, without the
full logits matrix: each device gathers all embeddings and contrasts its own rows with them, one
block at a time. A block keeps only its rows for the backward pass, where it is recomputed.
Gathering is part of the differentiated function, so its transpose sums the gradients over the
devices.
"""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from big_align.devices.rematerialization import remat_body
from big_align.losses.arguments import check_arrays
from big_align.losses.blocks import count_blocks
from big_align.losses.explicit_axes import on_any_mesh
from big_align.losses.precision import wide
from big_align.losses.supervised_contrastive import (
    Rows,
    average_rows,
    contrast_rows,
    number_rows,
)
from big_align.parallel.shards import Shards


@check_arrays
@on_any_mesh
def blockwise_supervised_contrastive_loss(
    z: Float[Array, "n d"],
    label: Int[Array, " n"],
    scale: Float[Array, ""] | float,
    mask: Bool[Array, " n"] | None = None,
    *,
    mesh: Mesh | Shards | None = None,
    block: int | None = None,
) -> Float[Array, ""]:
    """Returns what `supervised_contrastive.supervised_contrastive_loss` returns, in less memory.

    Besides its arguments, a device needs memory for a few blocks [block n] and for all embeddings
    and their gradient, [n d] each.

    Args:
      z: unit-length embeddings, float32 or bfloat16; cosines add up in float32.
      label: a label per row.
      scale: factor of the cosines.
      mask: True on real rows; None if all are.
      mesh: the devices that share the work, over all axes of a mesh, or over those of a
        `Shards(mesh, axes)`; None computes in one piece.
      block: rows of logits that a device computes at a time; None for 256 or, on GPUs, for as many
        as make 256 MiB.

    Raises:
      ValueError: `block` is not positive.
    """
    shards = Shards.over(mesh)
    blocks = count_blocks(len(z), len(z), shards, block)
    if not len(z):
        return jnp.zeros((), wide(z.dtype))  # there is nothing to cut into blocks
    padding = -len(z) % (blocks * shards.size)
    rows = jax.tree.map(
        lambda x: jnp.pad(x, ((0, padding), *[(0, 0)] * (x.ndim - 1))), number_rows(z, label, mask)
    )

    def contrast(rows: Rows, scale: Float[Array, ""]) -> tuple[tuple[Array, Array], tuple]:
        return _contrast_blocks(rows, shards.gather(rows), scale, blocks), ()

    return average_rows(*shards.run(contrast, rows, jnp.asarray(scale, rows.z.dtype))[0])


def _contrast_blocks(
    rows: Rows, others: Rows, scale: Float[Array, ""], blocks: int
) -> tuple[Float[Array, " b"], Bool[Array, " b"]]:
    """Does what `contrast_rows` does, in the given number of blocks of equal size."""
    cut = jax.tree.map(lambda x: x.reshape(blocks, -1, *x.shape[1:]), rows)

    def contrast(block: Rows) -> tuple[Array, Array]:
        return contrast_rows(block, others, scale)

    each, takes_part = jax.lax.map(remat_body(contrast), cut)
    return each.ravel(), takes_part.ravel()
