"""The layer from pooled features of an image tower to classes or tags."""

import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from big_align.core.types import Params
from big_align.models.dual_encoder import DualEncoder
from big_align.models.parts import layers


def make_classifier(num_classes: int, **options) -> layers.Dense:
    """Makes the layer from pooled features to classes, which are sharded like a vocabulary.

    Raises:
      ValueError: there are fewer than two classes.
    """
    if num_classes < 2:
        raise ValueError(f"num_classes = {num_classes} must be at least 2")
    return layers.Dense(num_classes, ("embed", "vocab"), **options)


def init_classifier(classifier: layers.Dense, rng: PRNGKeyArray, model: DualEncoder) -> Params:
    """Makes the parameters of a classifier for the features of a model's image tower."""
    return classifier.init(rng, jnp.zeros((1, model.image.output_dim)))["params"]
