"""The layer from pooled features of an image tower to classes or tags."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from big_align.core.errors import check_at_least
from big_align.core.types import Params
from big_align.models.dual_encoder import DualEncoder
from big_align.models.parts import layers


def make_classifier(num_classes: int, **options) -> layers.Dense:
    """Makes the layer from pooled features to classes, which are sharded like a vocabulary."""
    check_at_least(2, num_classes=num_classes)
    return layers.Dense(num_classes, ("embed", "vocab"), **options)


def run_layer(layer: nn.Module, weights: Params, *inputs: Any, **options: Any) -> Any:
    """Returns what a layer makes of its inputs."""
    return layer.apply({"params": weights}, *inputs, **options)


def init_classifier(classifier: layers.Dense, rng: PRNGKeyArray, model: DualEncoder) -> Params:
    """Makes the parameters of a classifier for the features of a model's image tower."""
    return classifier.init(rng, jnp.zeros((1, model.image.output_dim)))["params"]
