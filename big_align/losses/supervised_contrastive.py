"""Supervised contrast of embeddings with each other.

The plain formula holds the full [n n] matrix several times over. The blockwise one has the same
numbers and gradients without it: each device gathers all embeddings and contrasts its own rows with
them, one block at a time. A block keeps only its rows for the backward pass, where it is
recomputed. Gathering is part of the differentiated function, so its transpose sums the gradients
over the devices.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from big_align.losses.arguments import check_arrays
from big_align.losses.blocks import count_blocks
from big_align.losses.contrastive import compute_logits
from big_align.losses.explicit_axes import on_any_mesh
from big_align.losses.rows import clear_masked, divide, mean_over, wide
from big_align.parallel.devices.rematerialization import remat_body
from big_align.parallel.shards import Shards

_LOWEST = -1e30  # finite logit of non-candidates: a row without candidates has no NaN


@check_arrays
@on_any_mesh
def supervised_contrastive_loss(
    z: Float[Array, "n d"],
    label: Int[Array, " n"],
    scale: Float[Array, ""] | float,
    mask: Bool[Array, " n"] | None = None,
) -> Float[Array, ""]:
    """Returns the mean over rows of the mean of -log P over the positives of a row.

    P is the softmax of a row's cosines over all real rows except itself. Its positives are the
    other rows with the same label. A row that is masked or has no positive takes no part: it does
    not count in the value or in the mean, and the mean over no rows is 0; but if it is real, other
    rows are contrasted with it.

    Args:
      z: unit-length embeddings [n d], float32 or bfloat16; several views of an image are several
        rows.
      label: a label per row [n].
      scale: factor of the cosines, one over the temperature.
      mask: True on real rows [n]; None if all are.

    Returns:
      A scalar, float32.

    Raises:
      ValueError: an array has another shape.
      TypeError: an array has another type.

    Source: SupCon (Khosla et al. 2020) eq. 2, where the sum over positives is outside the
    logarithm, averaged over rows instead of summed.

    Examples:
      Two rows attract each other, and each costs log(1 + exp(-1)); the third has no positive:

      >>> import jax.numpy as jnp
      >>> import big_align
      >>> z, label = jnp.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), jnp.array([4, 4, 7])
      >>> print(f"{big_align.supervised_contrastive_loss(z, label, scale=1.0):.4f}")
      0.3133
    """
    rows = number_rows(z, label, mask)
    return mean_over(*contrast_rows(rows, rows, scale))


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
    """Returns what `big_align.supervised_contrastive_loss` returns, in less memory.

    Besides its arguments, a device needs memory for a few blocks [block n] and for all embeddings
    and their gradient, [n d] each.

    Args:
      z: unit-length embeddings [n d], float32 or bfloat16; cosines add up in float32.
      label: a label per row [n].
      scale: factor of the cosines, one over the temperature.
      mask: True on real rows [n]; None if all are.
      mesh: the devices that share the work, over all axes of a mesh, or over those of a
        `big_align.Shards(mesh, axes)`; None computes in one piece.
      block: rows of logits that a device computes at a time; None for 256 or, on GPUs, for as many
        as make 256 MiB.

    Returns:
      A scalar, float32.

    Raises:
      ValueError: `block` is not positive, or an array has another shape.
      TypeError: an array has another type, or `mesh` is no mesh.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import big_align
      >>> z = jax.random.normal(jax.random.key(0), (1000, 64))
      >>> z, label = z / jnp.linalg.norm(z, axis=-1, keepdims=True), jnp.arange(1000) % 10
      >>> plain = big_align.supervised_contrastive_loss(z, label, 10.0)
      >>> blockwise = big_align.blockwise_supervised_contrastive_loss(z, label, 10.0, block=100)
      >>> bool(jnp.isclose(plain, blockwise, rtol=1e-5))
      True
    """
    shards = Shards.over(mesh)
    blocks = count_blocks(len(z), len(z), shards, block)
    if not len(z):
        return jnp.zeros((), wide(z.dtype))  # there is nothing to cut into blocks
    padding = -len(z) % (blocks * shards.size)
    rows = jax.tree.map(
        lambda x: jnp.pad(x, ((0, padding), *[(0, 0)] * (x.ndim - 1))), number_rows(z, label, mask)
    )

    def contrast(rows: "Rows", scale: Float[Array, ""]) -> tuple[tuple[Array, Array], tuple]:
        others = shards.gather(rows)
        cut = jax.tree.map(lambda x: x.reshape(blocks, -1, *x.shape[1:]), rows)
        contrast_block = remat_body(lambda block: contrast_rows(block, others, scale))
        each, takes_part = jax.lax.map(contrast_block, cut)
        return (each.ravel(), takes_part.ravel()), ()

    return mean_over(*shards.run(contrast, rows, jnp.asarray(scale, rows.z.dtype))[0])


class Rows(NamedTuple):
    """Embeddings in float32 or better, and what determines which are positive for each other."""

    z: Float[Array, "n d"]
    label: Int[Array, " n"]
    mask: Bool[Array, " n"]
    number: Int[Array, " n"]  # of the row in the batch: a row is not its own candidate


def number_rows(
    z: Float[Array, "n d"], label: Int[Array, " n"], mask: Bool[Array, " n"] | None
) -> Rows:
    """Returns the rows of a batch, with their numbers."""
    mask = jnp.ones(len(z), bool) if mask is None else mask
    z = clear_masked(z, mask).astype(wide(z.dtype))
    return Rows(z, label, mask, jnp.arange(len(z)))


def contrast_rows(
    rows: Rows, others: Rows, scale: Float[Array, ""] | float
) -> tuple[Float[Array, " b"], Bool[Array, " b"]]:
    """Returns the mean of -log P over the positives of each row, and which rows have any.

    The mean is 0 where there are none.
    """
    candidate = rows.mask[:, None] & others.mask & (rows.number[:, None] != others.number)
    positive = candidate & (rows.label[:, None] == others.label)
    logits = jnp.where(candidate, compute_logits(rows.z, others.z, scale), _LOWEST)
    surprise = jnp.where(positive, -jax.nn.log_softmax(logits), 0).sum(axis=1)
    positives = positive.sum(axis=1)
    return divide(surprise, positives), positives > 0
