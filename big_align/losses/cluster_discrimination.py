"""Cluster discrimination: an image against all class centers, several of which are its own.

The plain formulas of MLCD (An et al. 2024, "Multi-label cluster discrimination for visual
representation learning") and of the losses it is compared with. All three are functions of two
numbers per example,

    N = log sum_j exp(s_j)   over its negatives      P = log sum_i exp(-s_i)   over its positives

where s is a cosine times a scale: eq. 5 (MLCD) is softplus(N) + softplus(P), eq. 4 (MLC) is
softplus(N + P), and eq. 3 (UNICOM) is eq. 4 with the first label alone. As softplus(x) is log(1 +
exp(x)), nothing overflows, and its 1 is included once, however N is accumulated.

They hold the full [b k] matrix several times over; `sampled_cluster_discrimination` computes the
same numbers and gradients from the drawn rows of a table that is split over devices.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from big_align.core.errors import check_known
from big_align.losses.arguments import check_arrays
from big_align.losses.explicit_axes import on_any_mesh
from big_align.losses.rows import mean_over, normalize_rows, wide

LOSSES = ("mlcd", "mlc", "unicom")
NEGATIVES = ("sampled", "drawn")
LOWEST = -1e30  # the logarithm of an empty sum; finite, so that neither sum nor slope is NaN
_SMALLEST_SINE_SQUARED = 1e-6


@check_arrays
@on_any_mesh
def mlcd_loss(
    zimg: Float[Array, "b d"],
    centers: Float[Array, "k d"],
    labels: Int[Array, "b p"],
    mask: Bool[Array, " b"] | None = None,
    *,
    sampled: Int[Array, " n"] | None = None,
    negatives: str = "sampled",
    scale: float = 64.0,
    margin: float = 0.3,
) -> Float[Array, ""]:
    """Returns the mean of log(1 + sum exp(-s_i)) + log(1 + sum exp(s_j)), eq. 5 of MLCD.

    s_i and s_j are the scaled cosines of an image with its positive and its negative centers, those
    with positives after the margin. An example's own positives are never among its negatives.

    The mean is over the examples that are real and have a label; it is 0 if there are none. The
    others take no part: their labels are not negatives of other examples either, unless sampled.

    Args:
      zimg: unit-length image embeddings [b d].
      centers: class centers [k d] of any length; only their directions count (MLCD A.1).
      labels: the positives i of each example [b p]; a repeated one counts once, and one outside
        [0, k), such as -1, does not count.
      mask: True on real examples [b]; None if all are.
      sampled: the centers that may be negatives [n], the set that MLCD §3.2 draws again in each
        step; -1 stands for none. If None, all centers are.
      negatives: "sampled", only these, as in §3.2; or "drawn", these and all centers that are
        positive for any example.
      scale: factor of the cosines. MLCD gives none; ArcFace (Deng et al. 2019): 64.
      margin: added to the angle of positives, in radians (MLCD A.1: 0.3).

    Returns:
      A scalar, float32.

    Raises:
      ValueError: `negatives` is unknown, `scale` is not positive, `margin` is not in [0, pi), or an
        array has another shape.
      TypeError: an array has another type.

    Source: MLCD (An et al. 2024) eq. 5 and §3.2; the margin is that of ArcFace (Deng et al. 2019).

    Examples:
      An image has one positive, with cosine 1, and two negatives, with cosine 0; so the loss is
      log(1 + exp(-1)) + log(1 + 2):

      >>> import jax.numpy as jnp
      >>> import big_align
      >>> zimg, labels = jnp.array([[1.0, 0.0]]), jnp.array([[0, -1]])
      >>> centers = jnp.array([[2.0, 0.0], [0.0, 3.0], [0.0, -1.0]])
      >>> loss = big_align.mlcd_loss(zimg, centers, labels, scale=1.0, margin=0.0)
      >>> print(f"{loss:.4f}")
      1.4119
    """
    return _discriminate("mlcd", zimg, centers, labels, mask, sampled, negatives, scale, margin)


@check_arrays
@on_any_mesh
def mlc_loss(
    zimg: Float[Array, "b d"],
    centers: Float[Array, "k d"],
    labels: Int[Array, "b p"],
    mask: Bool[Array, " b"] | None = None,
    *,
    sampled: Int[Array, " n"] | None = None,
    negatives: str = "sampled",
    scale: float = 64.0,
    margin: float = 0.3,
) -> Float[Array, ""]:
    """Returns the mean of log(1 + sum exp(s_j) sum exp(-s_i)), eq. 4 of MLCD.

    The mean is over the examples that are real and have a label; it is 0 if there are none.
    Arguments and errors are those of `big_align.mlcd_loss`.

    Returns:
      A scalar, float32.

    Examples:
      The positive and the negatives are those of the example there: log(1 + 2 exp(-1)).

      >>> import jax.numpy as jnp
      >>> import big_align
      >>> zimg, labels = jnp.array([[1.0, 0.0]]), jnp.array([[0, -1]])
      >>> centers = jnp.array([[2.0, 0.0], [0.0, 3.0], [0.0, -1.0]])
      >>> loss = big_align.mlc_loss(zimg, centers, labels, scale=1.0, margin=0.0)
      >>> print(f"{loss:.4f}")
      0.5514
    """
    return _discriminate("mlc", zimg, centers, labels, mask, sampled, negatives, scale, margin)


@check_arrays
@on_any_mesh
def unicom_loss(
    zimg: Float[Array, "b d"],
    centers: Float[Array, "k d"],
    labels: Int[Array, "b p"],
    mask: Bool[Array, " b"] | None = None,
    *,
    sampled: Int[Array, " n"] | None = None,
    negatives: str = "sampled",
    scale: float = 64.0,
    margin: float = 0.3,
) -> Float[Array, ""]:
    """Returns the mean cross-entropy of the first label, eq. 3 of MLCD, the loss of UNICOM.

    Only the first column of labels counts.

    The mean is over the examples that are real and have a label; it is 0 if there are none.
    Arguments and errors are those of `big_align.mlcd_loss`.

    Returns:
      A scalar, float32.

    Examples:
      Without a margin it is the softmax cross-entropy of the scaled cosines:

      >>> import jax.numpy as jnp
      >>> import big_align
      >>> zimg, label = jnp.array([[0.6, 0.8]]), jnp.array([1])
      >>> centers = jnp.eye(2)
      >>> loss = big_align.unicom_loss(zimg, centers, label[:, None], scale=10.0, margin=0.0)
      >>> logits = 10.0 * zimg @ centers.T
      >>> softmax = big_align.softmax_cross_entropy(logits, label, jnp.array([True]))
      >>> print(f"{loss:.4f} {softmax:.4f}")
      0.1269 0.1269
    """
    first = labels[:, :1]
    return _discriminate("unicom", zimg, centers, first, mask, sampled, negatives, scale, margin)


def add_margin(cosine: Float[Array, "..."], margin: float) -> Float[Array, "..."]:
    """Returns cos(angle + margin), given the cosine of the angle: ArcFace's margin.

    It is cos(a) cos(m) - sin(a) sin(m), so no arccosine is needed, and is differentiated in this
    form. The slope of the sine is infinite at angles 0 and pi; within 1e-3 of these, the sine is
    held constant.

    Beyond angle + margin = pi, the cosine would rise again and push the positive away. There it
    continues as cos(a) - (1 - cos(m)), which joins without a jump and falls to -2 + cos(m).
    """
    square = jnp.maximum((1 - cosine) * (1 + cosine), _SMALLEST_SINE_SQUARED)
    moved = cosine * math.cos(margin) - jnp.sqrt(square) * math.sin(margin)
    return jnp.where(cosine > -math.cos(margin), moved, cosine - (1 - math.cos(margin)))


def check_range(scale: float, margin: float) -> None:
    """Raises a ValueError if the scale of cosines or the margin of angles is out of range."""
    if not 0 < scale < math.inf:
        raise ValueError(f"scale = {scale} must be positive")
    if not 0 <= margin < math.pi:
        raise ValueError(f"margin = {margin} radians is not in [0, pi)")


def combine(
    loss: str, negatives: Float[Array, " b"], positives: Float[Array, " b"]
) -> Float[Array, " b"]:
    """Returns the loss of each example from log sum exp(s_j) and log sum exp(-s_i).

    An empty sum is `LOWEST`.
    """
    if loss == "mlcd":
        return jax.nn.softplus(negatives) + jax.nn.softplus(positives)
    return jax.nn.softplus(negatives + positives)


def log_sum(logits: Float[Array, "b n"], counted: Bool[Array, "b n"]) -> Float[Array, " b"]:
    """Returns log sum exp over the counted entries of each row, `LOWEST` for an empty sum."""
    return jax.nn.logsumexp(jnp.where(counted, logits, LOWEST), axis=1)


def _discriminate(
    loss: str,
    zimg: Float[Array, "b d"],
    centers: Float[Array, "k d"],
    labels: Int[Array, "b p"],
    mask: Bool[Array, " b"] | None,
    sampled: Int[Array, " n"] | None,
    negatives: str,
    scale: float,
    margin: float,
) -> Float[Array, ""]:
    check_known("negatives", negatives, NEGATIVES)
    check_range(scale, margin)
    k = len(centers)
    dtype = wide(zimg.dtype)
    positive = _mark(labels if mask is None else jnp.where(mask[:, None], labels, -1), k)
    takes_part = positive.any(axis=1)
    candidate = jnp.ones(k, bool)
    if sampled is not None:
        candidate = _mark(sampled[None], k)[0]
        if negatives == "drawn":
            candidate |= positive.any(axis=0)
    # Zeros before any product, so that values in other rows that are not finite do not reach the
    # gradient.
    zimg = jnp.where(takes_part[:, None], zimg.astype(dtype), 0)
    cosine = jnp.einsum("bd,kd->bk", zimg, normalize_rows(centers.astype(dtype))[0])
    negative_sum = log_sum(scale * cosine, candidate & ~positive)
    positive_sum = log_sum(-scale * add_margin(cosine, margin), positive)
    return mean_over(combine(loss, negative_sum, positive_sum), takes_part)


def _mark(labels: Int[Array, "b p"], k: int) -> Bool[Array, "b k"]:
    """Returns which of k classes are among the labels of each row."""
    inside = jnp.where((labels >= 0) & (labels < k), labels, k)
    marks = jnp.zeros((len(labels), k), bool)
    return marks.at[jnp.arange(len(labels))[:, None], inside].set(True, mode="drop")
