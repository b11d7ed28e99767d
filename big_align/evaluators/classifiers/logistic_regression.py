"""Logistic regression on many features: L-BFGS on the host, with the loss on the device."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import threadpoolctl
from jaxtyping import Array, Bool, Float, Float64, Int

LossAndGradient = Callable[[np.ndarray], tuple[float, np.ndarray]]

BLOCK = 16384
"""Number of examples whose logits are in memory at a time."""

TOLERANCE = 1e-4
"""Length of the gradient, relative to the loss, that counts as zero."""

PATIENCE = 20
"""Number of L-BFGS steps within which the value has to fall."""


class LinearClassifier(NamedTuple):
    """Scores classes by inner products."""

    weight: Float[np.ndarray, "f c"]
    bias: Float[np.ndarray, "c"]

    def scores(self, features: Float[np.ndarray, "n f"]) -> Float[np.ndarray, "n c"]:
        """Returns the logits of each class."""
        dtype = features.dtype
        return features @ self.weight.astype(dtype) + self.bias.astype(dtype)


def minimize(
    function: LossAndGradient,
    start: Float64[np.ndarray, "p"],
    max_iterations: int,
    tolerance: float,
) -> Float64[np.ndarray, "p"]:
    """Minimizes a positive function, given with its gradient, by L-BFGS.

    It ends when the length of the gradient is `tolerance` times the value. A bound relative to the
    value suits strong and weak regularization alike: with weak regularization, the loss of
    separable examples is tiny long before its minimum. It also ends when `PATIENCE` steps have
    lowered the value by no more than `tolerance` squared, relative to it, as happens in rounding
    noise.
    """
    latest = function(start)
    values = [latest[0]]

    def is_reached() -> bool:
        value, gradient = latest
        return bool(np.linalg.norm(gradient) <= tolerance * value)

    def evaluate(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal latest
        latest = function(parameters)
        return latest

    def stop_early(intermediate_result: scipy.optimize.OptimizeResult) -> None:
        values.append(latest[0])
        past = values[-1 - PATIENCE] if len(values) > PATIENCE else np.inf
        if is_reached() or past - values[-1] <= tolerance**2 * values[-1]:
            raise StopIteration

    if is_reached():
        return start
    # The line search takes a few evaluations per step; scipy's own bounds are switched off.
    options = {"maxiter": max_iterations, "maxfun": 20 * max_iterations, "gtol": 0.0, "ftol": 0.0}
    # Its vectors are short: on busy cores, more threads would wait for each other ten times as long
    # as they compute. The loss has its own threads.
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        return scipy.optimize.minimize(
            evaluate, start, jac=True, method="L-BFGS-B", options=options, callback=stop_early
        ).x


def cross_entropy(
    logits: Float[Array, "n c"], label: Int[Array, " n"]
) -> tuple[Float[Array, " n"], Float[Array, "n c"]]:
    """Returns each example's loss and its gradient by the logits; both are 0 where label is -1.

    Everything is relative to the logit of the right class: a difference of nearby numbers would
    lose the small losses of well-separated examples, and with them the search direction.
    """
    real = label[:, None] >= 0
    right = label[:, None] == jnp.arange(logits.shape[1])
    own = jnp.where(right, logits, 0).sum(axis=1, keepdims=True)
    lead = jnp.where(right, -jnp.inf, logits - own)
    top = jnp.maximum(lead.max(axis=1, keepdims=True), 0)
    others = jnp.exp(lead - top)
    mass = others.sum(axis=1, keepdims=True)
    total = jnp.exp(-top) + mass
    loss = jnp.where(top > 0, top + jnp.log(total), jnp.log1p(mass)) * real
    return loss[:, 0], (others - right * mass) / total * real


def binary_cross_entropy(
    logits: Float[Array, "n c"], present: Int[Array, "n c"]
) -> tuple[Float[Array, " n"], Float[Array, "n c"]]:
    """Returns each example's sum of losses over classes, and its gradient by the logits.

    `present` is 1 where an example has a class, 0 where it does not, and -1 where both results are
    0.
    """
    away = jnp.where(present == 1, -logits, logits)
    losses = jax.nn.softplus(away) * (present >= 0)
    gradient = jnp.where(present == 1, -1, 1) * jax.nn.sigmoid(away) * (present >= 0)
    return losses.sum(axis=1), gradient


@jax.jit
def _losses_and_gradients(
    features: Float[Array, "m k f"],
    label: Int[Array, "m k"] | Int[Array, "m k c"],
    weight: Float[Array, "f c"],
    bias: Float[Array, " c"],
) -> tuple[Float[Array, "m k"], Float[Array, "f c"], Float[Array, " c"]]:
    """Returns cross-entropies, computed block by block, and the gradients of their sum."""
    loss_of = cross_entropy if label.ndim == 2 else binary_cross_entropy

    def add_block(sums, block):
        features, label = block
        logits = jnp.matmul(features, weight, precision="highest") + bias
        loss, residual = loss_of(logits, label)
        weight_sum = sums[0] + jnp.matmul(features.T, residual, precision="highest")
        return (weight_sum, sums[1] + residual.sum(axis=0)), loss

    zeros = jnp.zeros_like(weight), jnp.zeros_like(bias)
    sums, losses = jax.lax.scan(add_block, zeros, (features, label))
    return losses, *sums


class LogisticRegression:
    """Minimizes sum of cross-entropies + strength / 2 |weight|^2; the bias has no penalty.

    If examples have one label each, classes compete in a softmax. If they have any number of
    labels, each class is separated from its absence on its own (one against the rest, with
    sigmoids).

    `strength` is CLIP's lambda (Radford et al. 2021, appendix A.3), one over scikit-learn's C. As
    there, features are used as they are, without standardization. L-BFGS runs in other coordinates,
    which change the speed but not the minimum: features minus their mean (which the bias absorbs),
    rotated to their principal axes, with each axis divided by the root of the curvature that the
    sum has along it when weights are zero. Axes whose standard deviation is below 1e-5 of the
    first's get no weight. Device arithmetic is float32; losses are summed in float64, so that
    rounding stops the line search late.

    The features of all examples are on one device (4 n f bytes, and 16384 c 4 bytes a few times for
    the logits of a block): 1.28 million of 2,048 take 10.5 GB. The host holds as much again.

    Labels are classes from 0; or, for each class, whether an example has it. `tolerance` is as for
    `minimize`.
    """

    def __init__(
        self,
        features: Float[np.ndarray, "n f"],
        label: Int[np.ndarray, "n"] | Bool[np.ndarray, "n c"],
        num_classes: int,
        max_iterations: int = 1000,
        tolerance: float = TOLERANCE,
    ):
        self._max_iterations, self._tolerance = max_iterations, tolerance
        self._count, self._num_classes = len(features), num_classes
        # p (1 - p) for a sigmoid at 1/2, and approximately so for a softmax at 1 / classes.
        self._curvature = 1 / num_classes if label.ndim == 1 else 1 / 4
        self._mean = features.mean(axis=0, dtype=np.float64)
        parts = range(0, self._count, BLOCK)
        centerd = (features[start : start + BLOCK] - self._mean for start in parts)
        variance, axes = np.linalg.eigh(sum(part.T @ part for part in centerd))
        kept = variance > max(variance[-1], 0) * 1e-10
        self._variance, self._axes = variance[kept] / self._count, axes[:, kept]
        blocks = -(-self._count // BLOCK)
        rows = -(-self._count // blocks)
        turned = np.zeros((blocks * rows, kept.sum()), np.float32)
        for start in parts:
            part = features[start : start + BLOCK] - self._mean
            turned[start : start + len(part)] = part @ self._axes
        padded = np.full((blocks * rows, *label.shape[1:]), -1, np.int32)
        padded[: self._count] = label
        self._features = jnp.asarray(turned.reshape(blocks, rows, -1))
        self._label = jnp.asarray(padded.reshape(blocks, rows, *label.shape[1:]))

    def fit(self, strength: float, start: LinearClassifier | None = None) -> LinearClassifier:
        """Returns the classifier with the smallest loss, searched from `start` or from zeros."""
        classes = self._num_classes
        ridge = strength / self._count
        scale = (self._variance * self._curvature + ridge)[:, None] ** -0.5
        bias_scale = self._curvature**-0.5
        if start is None:
            parameters = np.zeros((len(scale) + 1, classes))
        else:
            bias = start.bias + self._mean @ start.weight
            parameters = np.vstack([self._axes.T @ start.weight / scale, bias / bias_scale])

        def evaluate(flat: np.ndarray) -> tuple[float, np.ndarray]:
            scaled = flat.reshape(-1, classes)
            weight, bias = scaled[:-1] * scale, scaled[-1] * bias_scale
            losses, *sums = _losses_and_gradients(
                self._features, self._label, np.float32(weight), np.float32(bias)
            )
            value = np.asarray(losses, np.float64).sum() / self._count
            by_weight, by_bias = (np.asarray(x, np.float64) / self._count for x in sums)
            gradient = np.vstack([(by_weight + ridge * weight) * scale, by_bias * bias_scale])
            return float(value + ridge / 2 * np.sum(weight**2)), gradient.ravel()

        found = minimize(evaluate, parameters.ravel(), self._max_iterations, self._tolerance)
        scaled = found.reshape(-1, classes)
        weight = self._axes @ (scaled[:-1] * scale)
        return LinearClassifier(weight, scaled[-1] * bias_scale - self._mean @ weight)
