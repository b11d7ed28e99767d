"""Supervised contrast of embeddings with each other: the plain formula.

It holds the full [n n] matrix several times over; `blockwise_supervised_contrastive` evaluates the
same formula a few rows at a time.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from big_align.losses.arguments import check_arrays
from big_align.losses.contrastive import compute_logits
from big_align.losses.explicit_axes import on_any_mesh
from big_align.losses.precision import wide
from big_align.losses.targets import clear_masked

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
      z: unit-length embeddings; several views of an image are several rows.
      label: a label per row.
      scale: factor of the cosines, one over the temperature.
      mask: True on real rows; None if all are.

    Source: Khosla et al. 2020, "Supervised contrastive learning", eq. 2 (the sum over positives is
    outside the logarithm), averaged over rows instead of summed.
    """
    rows = number_rows(z, label, mask)
    return average_rows(*contrast_rows(rows, rows, scale))


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
    number = jnp.arange(len(z))
    if mask is None:
        mask = jnp.ones(len(z), bool)
    else:
        z = clear_masked(z, mask)
    return Rows(z.astype(wide(z.dtype)), label, mask, number)


def contrast_rows(
    rows: Rows, others: Rows, scale: Float[Array, ""] | float
) -> tuple[Float[Array, " b"], Bool[Array, " b"]]:
    """Contrasts rows with others.

    Returns:
      The mean of -log P over the positives of each row, 0 if there are none; and which rows have
      positives.
    """
    candidate = rows.mask[:, None] & others.mask & (rows.number[:, None] != others.number)
    positive = candidate & (rows.label[:, None] == others.label)
    logits = jnp.where(candidate, compute_logits(rows.z, others.z, scale), _LOWEST)
    surprise = jnp.where(positive, -jax.nn.log_softmax(logits), 0).sum(axis=1)
    positives = positive.sum(axis=1)
    return surprise / jnp.maximum(positives, 1).astype(surprise.dtype), positives > 0


def average_rows(each: Float[Array, " n"], takes_part: Bool[Array, " n"]) -> Float[Array, ""]:
    """Returns the mean over the rows that take part; the others are 0."""
    return each.sum() / jnp.maximum(takes_part.sum(), 1).astype(each.dtype)
