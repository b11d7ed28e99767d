"""Least squares with a penalty on squared weights, solved for many penalties at once."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

SPREAD = 1e-5
"""Added to standard deviations, so that a constant feature has no effect."""


class RidgeClassifier(NamedTuple):
    """A linear classifier of standardized features.

    Attributes:
      mean: mean of the features that it was fitted on.
      deviation: their standard deviation.
      weights: weights of the standardized features.
      bias: bias of each class.
    """

    mean: Float[np.ndarray, "d"]
    deviation: Float[np.ndarray, "d"]
    weights: Float[np.ndarray, "d c"]
    bias: Float[np.ndarray, "c"]

    def scores(self, features: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n c"]:
        """Returns a score for each class; the largest decides."""
        return ((features - self.mean) / self.deviation) @ self.weights + self.bias


class RidgeRegression:
    """Classifiers whose targets are 1 for the class of an image and -1 for the others.

    It minimizes the sum of squares plus the penalty times the squared weights; the bias has no
    penalty. Features are standardized with the statistics of those that are fitted on (the few-shot
    probe of big_vision). One decomposition serves all penalties.

    Args:
      features: features of the images.
      label: the class of each.
      num_classes: number of classes.
    """

    def __init__(
        self, features: Float[np.ndarray, "n d"], label: Int[np.ndarray, "n"], num_classes: int
    ):
        features = features.astype(np.float64)
        self._mean = features.mean(axis=0)
        self._deviation = features.std(axis=0) + SPREAD
        targets = np.where(label[:, None] == np.arange(num_classes), 1.0, -1.0)
        self._bias = targets.mean(axis=0)
        # Images are few and features many: the thin decomposition is as small as the fewer of the
        # two.
        inputs = (features - self._mean) / self._deviation
        left, self._values, self._right = np.linalg.svd(inputs, full_matrices=False)
        self._moments = left.T @ (targets - self._bias)

    def fit(self, penalty: float) -> RidgeClassifier:
        """Returns the classifier for a penalty, which must be above 0."""
        shrunk = self._values / (self._values**2 + penalty)
        weights = self._right.T @ (shrunk[:, None] * self._moments)
        return RidgeClassifier(self._mean, self._deviation, weights, self._bias)
