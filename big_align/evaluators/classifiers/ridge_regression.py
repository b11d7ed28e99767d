"""Least squares with a penalty on squared weights, of standardized features."""

import numpy as np
from jaxtyping import Float, Int

SPREAD = 1e-5
"""Added to standard deviations, so that a constant feature has no effect."""


class RidgeClassifier:
    """A classifier fitted to 1 for the class of an image and -1 for the others.

    It minimizes the sum of squares plus the penalty times the squared weights; the bias has no
    penalty. Features are standardized with the statistics of those that are fitted on (the few-shot
    probe of big_vision).
    """

    def __init__(
        self,
        features: Float[np.ndarray, "n d"],
        label: Int[np.ndarray, "n"],
        num_classes: int,
        penalty: float,
    ):
        from sklearn.linear_model import Ridge

        features = features.astype(np.float64)
        self._mean, self._deviation = features.mean(axis=0), features.std(axis=0) + SPREAD
        targets = np.where(label[:, None] == np.arange(num_classes), 1.0, -1.0)
        self._ridge = Ridge(penalty, solver="svd").fit(self._standardize(features), targets)

    def _standardize(self, features: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        return (features - self._mean) / self._deviation

    def scores(self, features: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n c"]:
        """Returns a score for each class; the largest decides."""
        return self._ridge.predict(self._standardize(features))
