"""Cross-entropy over a list of classes: eq. 1 of iCLIP (Wei et al. 2023), on given logits."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from big_align.losses.arguments import check_arrays
from big_align.losses.explicit_axes import on_any_mesh
from big_align.losses.rows import mean_over, wide
from big_align.losses.targets import check_smoothing


def labeled_rows(
    label: Int[Array, " b"], mask: Bool[Array, " b"], num_classes: int
) -> Bool[Array, " b"]:
    """Returns which rows are real and have a label in [0, `num_classes`)."""
    return mask & (label >= 0) & (label < num_classes)


@check_arrays
@on_any_mesh
def softmax_cross_entropy(
    logits: Float[Array, "b c"],
    label: Int[Array, " b"],
    mask: Bool[Array, " b"],
    label_smoothing: float = 0.0,
) -> Float[Array, ""]:
    """Returns the mean cross-entropy of the labeled rows; it is 0 if there are none.

    A row that is masked, or whose label is negative or beyond the classes, takes no part: it does
    not count in the value or in the mean, and its gradient is 0.

    Args:
      logits: logit of each class [b c]; without smoothing, -inf rules a class out.
      label: the right class of each row [b].
      mask: True on real rows [b].
      label_smoothing: fraction of the target spread over all classes, in [0, 1].

    Returns:
      A scalar, float32, or float64 of such logits.

    Raises:
      ValueError: `label_smoothing` is not in [0, 1], or an array has another shape.
      TypeError: an array has another type.

    Examples:
      Two classes are equally probable; the second row has no label, and takes no part:

      >>> import jax.numpy as jnp
      >>> import big_align
      >>> logits, label, mask = jnp.zeros((2, 2)), jnp.array([0, -1]), jnp.array([True, True])
      >>> print(f"{big_align.softmax_cross_entropy(logits, label, mask):.4f}")
      0.6931
    """
    check_smoothing(label_smoothing)
    takes_part = labeled_rows(label, mask, logits.shape[1])
    # Zeros before the logarithm, so that values in other rows that are not finite do not reach the
    # gradient.
    logits = jnp.where(takes_part[:, None], logits.astype(wide(logits.dtype)), 0)
    log_probs = jax.nn.log_softmax(logits)
    own = jnp.take_along_axis(log_probs, jnp.where(takes_part, label, 0)[:, None], axis=1)[:, 0]
    each = -own
    if label_smoothing:  # without it, classes may be ruled out by a logit of -inf
        each = (1 - label_smoothing) * each - label_smoothing * log_probs.mean(axis=1)
    return mean_over(each, takes_part)


def measure_batch(
    logits: Float[Array, "b c"], label: Int[Array, " b"], mask: Bool[Array, " b"]
) -> dict[str, Float[Array, ""]]:
    """Returns `accuracy` over the labeled rows, 0 if there are none, and `labels_outside`.

    The latter is the number of labels beyond the last class.
    """
    takes_part = labeled_rows(label, mask, logits.shape[1])
    hit = (jnp.argmax(logits, axis=1) == label).astype(jnp.float32)
    outside = mask & (label >= logits.shape[1])
    return {
        "accuracy": mean_over(hit, takes_part),
        "labels_outside": outside.sum().astype(jnp.float32),
    }
