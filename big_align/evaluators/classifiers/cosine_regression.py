"""A cosine classifier that starts as class texts and is tuned on a few images (iCLIP §4.4)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from big_align.evaluators.classifiers.logistic_regression import cross_entropy, minimize


class CosineClassifier(NamedTuple):
    """Scores classes by cosines over a temperature, with a vector of any length for each."""

    vectors: Float[np.ndarray, "c d"]
    temperature: float

    def scores(self, zimg: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n c"]:
        """Returns the logits of each class for unit-length embeddings."""
        unit = self.vectors / np.linalg.norm(self.vectors, axis=1, keepdims=True)
        return zimg @ unit.T.astype(zimg.dtype) / self.temperature


@jax.jit
def _losses_and_gradient(
    zimg: Float[Array, "n d"],
    label: Int[Array, " n"],
    vectors: Float[Array, "c d"],
    temperature: Float[Array, ""] | float,
) -> tuple[Float[Array, " n"], Float[Array, "c d"]]:
    """Returns cross-entropies, and the gradient of their sum with respect to the vectors."""
    length = jnp.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / length
    logits = jnp.matmul(zimg, unit.T, precision="highest") / temperature
    loss, residual = cross_entropy(logits, label)
    by_unit = jnp.matmul(residual.T, zimg, precision="highest") / temperature
    return loss, (by_unit - (by_unit * unit).sum(axis=1, keepdims=True) * unit) / length


class CosineRegression:
    """Minimizes sum of cross-entropies + strength / 2 |(vectors - texts) / temperature|^2.

    Strong regularization keeps the zero-shot classifier, weak regularization forgets the texts.
    Divided by the temperature, the vectors have the scale of those of logistic regression, so one
    range of strengths suits both. Embeddings of images and of classes have unit length.
    """

    def __init__(
        self,
        zimg: Float[np.ndarray, "n d"],
        label: Int[np.ndarray, "n"],
        texts: Float[np.ndarray, "c d"],
        temperature: float,
        max_iterations: int = 1000,
        tolerance: float = 1e-3,
    ):
        self._zimg, self._label = jnp.asarray(zimg, jnp.float32), jnp.asarray(label, jnp.int32)
        self._texts, self._temperature = np.asarray(texts, np.float64), temperature
        self._max_iterations, self._tolerance = max_iterations, tolerance

    def fit(self, strength: float, start: CosineClassifier | None = None) -> CosineClassifier:
        """Returns a classifier with minimal loss, searched from `start`, by default the texts."""
        texts, temperature, count = self._texts, self._temperature, len(self._label)
        begin = texts if start is None else start.vectors

        def evaluate(flat: np.ndarray) -> tuple[float, np.ndarray]:
            moved = flat.reshape(texts.shape)
            vectors = np.float32(texts + temperature * moved)
            losses, by_vectors = _losses_and_gradient(self._zimg, self._label, vectors, temperature)
            penalty = strength / 2 * np.sum(moved**2)
            value = np.asarray(losses, np.float64).sum() + penalty
            gradient = np.asarray(by_vectors, np.float64) * temperature + strength * moved
            return float(value) / count, gradient.ravel() / count

        moved = ((begin - texts) / temperature).ravel()
        found = minimize(evaluate, moved, self._max_iterations, self._tolerance)
        return CosineClassifier(texts + temperature * found.reshape(texts.shape), temperature)
