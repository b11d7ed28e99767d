"""Which pairs of a batch are positive, and the weight of each in the mean."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from big_align.losses.rows import clear_masked, divide


def complete_targets(
    zimg: Float[Array, "b d"],
    ztxt: Float[Array, "c d"],
    image_label: Int[Array, " b"] | None,
    text_label: Int[Array, " c"] | None,
    image_mask: Bool[Array, " b"] | None,
    text_mask: Bool[Array, " c"] | None,
) -> tuple[Int[Array, " b"], Int[Array, " c"], Bool[Array, " b"], Bool[Array, " c"]]:
    """Checks the targets of a contrastive loss, and returns them with those left out filled in."""
    if (image_label is None) != (text_label is None):
        raise ValueError("image_label and text_label must be given together or both be None")
    if image_label is None or text_label is None:
        if len(zimg) != len(ztxt):
            raise ValueError(
                f"without labels image i belongs to text i, but there are {len(zimg)} images and "
                f"{len(ztxt)} texts; give image_label and text_label"
            )
        image_label = text_label = jnp.arange(len(zimg))
    if image_mask is None:
        image_mask = jnp.ones(len(zimg), bool)
    if text_mask is None:
        text_mask = jnp.ones(len(ztxt), bool)
    return image_label, text_label, image_mask, text_mask


def check_smoothing(label_smoothing: float) -> None:
    """Raises a ValueError if a fraction of the target is not in [0, 1]."""
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing must be in [0, 1], got {label_smoothing}")


class Labels(NamedTuple):
    """Equal labels are positive for each other; a negative label is masked and equals no other."""

    row: Int[Array, " b"]
    column: Int[Array, " c"]


class Weights(NamedTuple):
    """Factors of each row's logsumexp and of each of its positive logits, in either mean.

    Rows that take no part have weight 0. Both losses sum their positives by image: texts with the
    same label have the same number of positives.
    """

    row: Float[Array, " b"]
    column: Float[Array, " c"]
    row_positive: Float[Array, " b"]
    column_positive: Float[Array, " b"]


def arrange_pairs(
    zimg: Float[Array, "b d"],
    ztxt: Float[Array, "c d"],
    image_label: Int[Array, " b"] | None,
    text_label: Int[Array, " c"] | None,
    image_mask: Bool[Array, " b"] | None,
    text_mask: Bool[Array, " c"] | None,
    multiples: tuple[int, int, int],
) -> tuple[Float[Array, "p e"], Float[Array, "q e"], Labels]:
    """Clears masked examples, ranks labels, and appends masked examples and channels of zeros.

    Labels are numbered anew from 0 to at most b + c - 1, masked images as -1, masked texts as -2.
    Images, texts and channels are padded to `multiples`. The other arguments are those of
    `contrastive_loss`.
    """
    row, column, real_image, real_text = complete_targets(
        zimg, ztxt, image_label, text_label, image_mask, text_mask
    )
    if image_label is not None:  # otherwise they are 0, 1, ..., which saves a sort
        both = jnp.concatenate([row, column])
        _, ranks = jnp.unique(both, return_inverse=True, size=len(both))
        row, column = jnp.split(ranks, [len(row)])
    row, column = jnp.where(real_image, row, -1), jnp.where(real_text, column, -2)
    zimg = zimg if image_mask is None else clear_masked(zimg, image_mask)
    ztxt = ztxt if text_mask is None else clear_masked(ztxt, text_mask)
    rows, columns, channels = multiples
    images, texts, zeros = -len(zimg) % rows, -len(ztxt) % columns, -zimg.shape[1] % channels
    return (
        jnp.pad(zimg, ((0, images), (0, zeros))),
        jnp.pad(ztxt, ((0, texts), (0, zeros))),
        Labels(
            jnp.pad(row, (0, images), constant_values=-1),
            jnp.pad(column, (0, texts), constant_values=-2),
        ),
    )


def weigh_evenly(counted: Bool[Array, " n"], dtype: DTypeLike) -> Float[Array, " n"]:
    """Returns one over the number of counted entries for each of them, 0 for the others."""
    return divide(counted.astype(dtype), counted.sum())


def weigh_labels(
    labels: Labels, text_queries: Bool[Array, " c"] | None, label_smoothing: float, dtype: DTypeLike
) -> Weights:
    """Computes weights from the positives of every example and the examples that have any."""

    def count(label: Int[Array, " n"], counted: Bool[Array, " n"]) -> Int[Array, " labels"]:
        # Masked labels index from the end, and add 0 there.
        counts = jnp.zeros(len(labels.row) + len(labels.column), label.dtype)
        return counts.at[label].add(counted.astype(label.dtype))

    real_image, real_text = labels.row >= 0, labels.column >= 0
    images, texts = count(labels.row, real_image), count(labels.column, real_text)
    queries = texts if text_queries is None else count(labels.column, real_text & text_queries)
    takes_part = real_image & (texts[labels.row] > 0)
    row = weigh_evenly(takes_part, dtype)
    asked = (images > 0) & (queries > 0)
    column = weigh_evenly(real_text & asked[labels.column], dtype)
    # All texts that take part have the same weight, so the largest weight is that of each.
    fraction = jnp.where(takes_part, 1 - label_smoothing, 0).astype(dtype)
    column_fraction = jnp.where(asked[labels.row], fraction * column.max(), 0)
    return Weights(
        row,
        column,
        divide(fraction * row, texts[labels.row]),
        divide(column_fraction, images[labels.row]),
    )
