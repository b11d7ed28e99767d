"""Softmax over the pairs of a batch, in both directions: the plain formula.

It holds the full [b c] matrix several times over; `blockwise_contrastive` computes the same numbers
and gradients without it, and is tested against this file.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from big_align.losses.arguments import check_arrays
from big_align.losses.explicit_axes import on_any_mesh
from big_align.losses.rows import clear_masked, divide, mean_over, wide
from big_align.losses.targets import check_smoothing, complete_targets


@check_arrays
@on_any_mesh
def contrastive_loss(
    zimg: Float[Array, "b d"],
    ztxt: Float[Array, "c d"],
    scale: Float[Array, ""] | float,
    *,
    image_label: Int[Array, " b"] | None = None,
    text_label: Int[Array, " c"] | None = None,
    image_mask: Bool[Array, " b"] | None = None,
    text_mask: Bool[Array, " c"] | None = None,
    text_queries: Bool[Array, " c"] | None = None,
    label_smoothing: float = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Returns the mean image-to-text and the mean text-to-image cross-entropy of a batch.

    An image and a text are positive for each other if both are real and their labels are equal. The
    target of a row spreads `1 - label_smoothing` evenly over its positives and the rest evenly over
    all real candidates. A row that is masked or has no positive takes no part: it does not count in
    the value or in the mean, and the mean over no rows is 0.

    Args:
      zimg: unit-length image embeddings [b d], float32 or bfloat16.
      ztxt: unit-length text embeddings [c d].
      scale: factor of the cosines (one over ALIGN's temperature, CLIP's exp(tau)).
      image_label: a label per image [b]; if None, image i and text i are the only positives.
      text_label: a label per text [c]; given if and only if `image_label` is.
      image_mask: True on real images [b]; None if all are.
      text_mask: True on real texts [c]; None if all are.
      text_queries: True on texts [c] that are rows of the text-to-image mean, besides being
        candidates of the images; None if all are. Texts with the same label all count or none does:
        all, if any is True.
      label_smoothing: fraction of the target spread over all real candidates, in [0, 1].

    Returns:
      Two scalars, image-to-text and text-to-image, float32. ALIGN adds them, CLIP and UniCL average
      them.

    Raises:
      ValueError: one of the labels is missing, the batches differ in size but there are no labels,
        `label_smoothing` is not in [0, 1], or an array has another shape.
      TypeError: an array has another type.

    Sources: ALIGN (Jia et al. 2021) eq. 1 and 2; UniCL (Yang et al. 2022) Algorithm 1.

    Examples:
      Of two pairs that are orthogonal to each other, each costs log(1 + exp(-1)):

      >>> import jax.numpy as jnp
      >>> import big_align
      >>> z = jnp.eye(2)
      >>> image_to_text, text_to_image = big_align.contrastive_loss(z, z, scale=1.0)
      >>> print(f"{image_to_text:.4f} {text_to_image:.4f}")
      0.3133 0.3133

      With one label for both, every image has two positives, and can be right about half of each:

      >>> same = jnp.zeros(2, int)
      >>> loss, _ = big_align.contrastive_loss(z, z, 1.0, image_label=same, text_label=same)
      >>> print(f"{loss:.4f}")
      0.8133
    """
    check_smoothing(label_smoothing)
    image_label, text_label, image_mask, text_mask = complete_targets(
        zimg, ztxt, image_label, text_label, image_mask, text_mask
    )
    zimg, ztxt = clear_masked(zimg, image_mask), clear_masked(ztxt, text_mask)
    logits = compute_logits(zimg, ztxt, scale)
    real = image_mask[:, None] & text_mask[None, :]
    positive = (image_label[:, None] == text_label[None, :]) & real
    asked = positive  # positive pairs whose text, or another with its label, is a query
    if text_queries is not None:
        asked = positive & (positive & text_queries).any(axis=1, keepdims=True)
    return (
        _cross_entropy(logits, positive, real, label_smoothing, axis=1),
        _cross_entropy(logits, asked, real, label_smoothing, axis=0),
    )


def compute_logits(
    zimg: Float[Array, "b d"], ztxt: Float[Array, "c d"], scale: Float[Array, ""] | float
) -> Float[Array, "b c"]:
    """Returns scaled cosines in float32 or better, whatever the precision of the embeddings."""
    return jnp.asarray(scale, wide(zimg.dtype)) * compute_cosines(zimg, ztxt)


def compute_cosines(zimg: Float[Array, "b d"], ztxt: Float[Array, "c d"]) -> Float[Array, "b c"]:
    """Returns the products of unit-length embeddings in float32 or better."""
    return jnp.einsum("bd,cd->bc", zimg, ztxt, preferred_element_type=wide(zimg.dtype))


def _cross_entropy(
    logits: Float[Array, "b c"],
    positive: Bool[Array, "b c"],
    real: Bool[Array, "b c"],
    label_smoothing: float,
    axis: int,
) -> Float[Array, ""]:
    """Returns the mean cross-entropy along an axis, over those with a positive."""
    dtype = logits.dtype
    positive, candidate = positive.astype(dtype), real.astype(dtype)
    positives = positive.sum(axis, keepdims=True)
    candidates = candidate.sum(axis, keepdims=True)
    targets = divide((1 - label_smoothing) * positive, positives)
    targets += divide(label_smoothing * candidate, candidates)
    # A large finite number instead of -inf, so that 0 * log(0) and fully masked rows stay finite.
    log_probs = jax.nn.log_softmax(jnp.where(real, logits, -1e30), axis)
    return mean_over(-(targets * log_probs).sum(axis), positives.squeeze(axis) > 0)
