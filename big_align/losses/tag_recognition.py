"""Recognition of tags, only some of which are known: IDEA (Huang et al. 2022), §3.2.

Every tag is a separate decision, p = sigmoid(logit). An image's loss is the sum over all tags, as
in eq. 1 and 2, and a batch's loss is the mean over its real images. Given tags are positive. Some
of the others are in the image but were not mentioned; from a certain step on, Self-Paced Loss
Correction (SPLC, Zhang et al. 2021) treats those whose p is above a threshold as positive: they are
"found". Finding is a decision, through which no gradient flows.

IDEA weights the tags (eq. 2) in everything that follows, so its SPLC is weighted; that of SPLC's
authors is not, and has a margin and focal weights instead. Both are here, each under its own name.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from big_align.core.errors import check_known
from big_align.losses.arguments import check_arrays
from big_align.losses.explicit_axes import on_any_mesh
from big_align.losses.rows import clear_masked, divide, mean_over

LOSSES = ("bce", "weighted_bce", "splc", "splc_focal")


def mark_tags(tags: Int[Array, "b t"], num_tags: int) -> Bool[Array, "b c"]:
    """Returns which tags each row lists; an id that is negative or too large means none."""
    # A comparison with all tags, fused with the reduction; a scatter would not split by rows.
    return (tags[:, :, None] == jnp.arange(num_tags)).any(axis=1)


@check_arrays
def find_tags(
    logits: Float[Array, "b c"],
    given: Bool[Array, "b c"],
    mask: Bool[Array, " b"],
    correcting: Bool[Array, "*b"],
    threshold: float = 0.6,
) -> Bool[Array, "b c"]:
    """Returns which tags are found: those not given whose probability is above the threshold.

    Args:
      logits: logit of each tag [b c].
      given: the tags that are known [b c].
      mask: True on real rows [b]; nothing is found in the others.
      correcting: whether to find tags at all, for the batch [] or for each row [b].
      threshold: threshold of the probability, in (0, 1) (IDEA §4.1: 0.6).

    Returns:
      True on the tags that are found [b c]; no gradient flows through it.

    Raises:
      ValueError: an array has another shape.
      TypeError: an array has another type.

    Source: IDEA (Huang et al. 2022) §3.2; SPLC (Zhang et al. 2021).

    Examples:
      The first tag is found, the second is improbable, and the third was given:

      >>> import jax.numpy as jnp
      >>> import big_align
      >>> logits, given = jnp.array([[2.0, -2.0, 2.0]]), jnp.array([[False, False, True]])
      >>> true = jnp.array([True])
      >>> print(big_align.find_tags(logits, given, mask=true, correcting=true))
      [[ True False False]]
    """
    wanted = (mask & correcting)[:, None] & ~given
    return wanted & (jax.nn.sigmoid(logits.astype(jnp.float32)) > threshold)


@check_arrays
@on_any_mesh
def binary_cross_entropy(
    logits: Float[Array, "b c"],
    positive: Bool[Array, "b c"],
    mask: Bool[Array, " b"],
    weights: Float[Array, " c"] | None = None,
) -> Float[Array, ""]:
    """Returns binary cross-entropy: eq. 1 and 3, or eq. 2 with weights.

    If `positive` includes the found tags, this is IDEA's SPLC: a found tag has the loss of a
    positive one, log(p), instead of log(1 - p).

    Args:
      logits: logit of each tag.
      positive: the tags that are in the image.
      mask: True on real rows; the others affect neither the value nor the gradient.
      weights: weights of the tags; None for 1.

    Returns:
      The sum over tags and mean over real rows, float32; 0 if there are none.
    """
    logits = clear_masked(logits.astype(jnp.float32), mask)
    each = jax.nn.softplus(jnp.where(positive, -logits, logits))
    each = each if weights is None else weights.astype(each.dtype) * each
    return mean_over(each.sum(axis=1), mask)


@check_arrays
@on_any_mesh
def focal_cross_entropy(
    logits: Float[Array, "b c"],
    given: Bool[Array, "b c"],
    found: Bool[Array, "b c"],
    mask: Bool[Array, " b"],
    margin: float = 1.0,
    gamma: float = 2.0,
) -> Float[Array, ""]:
    """Returns the loss of SPLC's authors: a margin on given tags, and focal weights.

    The margin is subtracted from the logits of given tags only. A term with probability q of its
    right answer is -(1 - q)^gamma log(q), and the gradient flows through both factors.

    Args:
      logits: logit of each tag.
      given: the tags that are known.
      found: tags that were found in addition.
      mask: True on real rows; the others affect neither the value nor the gradient.
      margin: subtracted from the logits of given tags (Zhang et al. 2021: 1).
      gamma: exponent of the focal weight (Zhang et al. 2021: 2).

    Returns:
      The sum over tags and mean over real rows, float32; 0 if there are none.
    """
    logits = clear_masked(logits.astype(jnp.float32), mask)
    # Logits of the wrong answer.
    logits = jnp.where(given, margin - logits, jnp.where(found, -logits, logits))
    each = jax.nn.sigmoid(logits) ** gamma * jax.nn.softplus(logits)
    return mean_over(each.sum(axis=1), mask)


@check_arrays
@on_any_mesh
def tag_recognition_loss(
    name: str,
    logits: Float[Array, "b c"],
    given: Bool[Array, "b c"],
    found: Bool[Array, "b c"],
    mask: Bool[Array, " b"],
    weights: Float[Array, " c"],
) -> Float[Array, ""]:
    """Returns one of the losses of tags, each of which is a separate decision.

    Args:
      name: "bce" (eq. 1) and "weighted_bce" (eq. 2) treat found tags as negative; "splc" is eq. 2
        with found tags as positive; "splc_focal" is the loss of SPLC's authors, with a margin of 1
        on given tags and focal weights of exponent 2.
      logits: logit of each tag [b c].
      given: the tags that are known [b c].
      found: found tags [b c], from `big_align.find_tags`.
      mask: True on real rows [b]; the others affect neither the value nor the gradient.
      weights: weights of the tags [c], in IDEA inversely proportional to the square root of their
        frequency; only "weighted_bce" and "splc" use them.

    Returns:
      The sum over tags and mean over real rows, float32; 0 if there are none.

    Raises:
      ValueError: the name is none of these, or an array has another shape.
      TypeError: an array has another type.

    Sources: IDEA (Huang et al. 2022) eq. 1 to 3; SPLC (Zhang et al. 2021).

    Examples:
      Each tag is as probable as not, and costs log(2), but the second weighs twice as much:

      >>> import jax.numpy as jnp
      >>> import big_align
      >>> logits, weights, mask = jnp.zeros((1, 3)), jnp.array([1.0, 2.0, 1.0]), jnp.array([True])
      >>> given, found = jnp.array([[True, False, False]]), jnp.array([[False, True, False]])
      >>> for name in ("bce", "splc"):
      ...     loss = big_align.tag_recognition_loss(name, logits, given, found, mask, weights)
      ...     print(f"{name} {loss:.4f}")
      bce 2.0794
      splc 2.7726
    """
    check_known("name", name, LOSSES)
    if name == "splc_focal":
        return focal_cross_entropy(logits, given, found, mask)
    positive = given | found if name == "splc" else given
    return binary_cross_entropy(logits, positive, mask, None if name == "bce" else weights)


def measure_found(
    given: Bool[Array, "b c"],
    found: Bool[Array, "b c"],
    mask: Bool[Array, " b"],
    true: Bool[Array, "b c"] | None = None,
) -> dict[str, Float[Array, ""]]:
    """Returns `tags_found`, the mean over images, and with `true` how right they are.

    `true` has all tags of each image. `found_precision` is the fraction of found tags that are
    true, and `found_recall` the fraction of the true tags not given that are found; both over all
    tags of the batch together, and 0 if there are none.
    """
    count = lambda x: (x & mask[:, None]).sum().astype(jnp.float32)  # noqa: E731
    metrics = {"tags_found": divide(count(found), mask.sum())}
    if true is None:
        return metrics
    right, missed = count(found & true), count(true & ~given)
    return metrics | {
        "found_precision": divide(right, count(found)),
        "found_recall": divide(right, missed),
    }
