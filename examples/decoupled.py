"""A learned temperature: each pair against its negatives alone (Yeh et al. 2022)."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from big_align.core.types import Batch, MeasuredLoss, Outputs, Params
from big_align.models.dual_encoder import DualEncoder
from big_align.objectives.parts.composed import ComposedObjective
from big_align.objectives.parts.encoders import TwoTowers
from big_align.objectives.parts.temperature import Divisor


class Decoupled(ComposedObjective):
    """Trains by a softmax without the pair itself, with one caption for each image.

    Args:
      temperature: initial value of what cosines are divided by.
      least: lower bound of the temperature; without one the loss falls for ever.
    """

    def __init__(
        self, model: DualEncoder, mesh: Mesh, temperature: float = 0.1, least: float = 0.01
    ):
        super().__init__(TwoTowers(model), mesh, Divisor(temperature, min_temperature=least))

    def loss(self, params: Params, outputs: Outputs, prepared: None, batch: Batch) -> MeasuredLoss:
        """Returns the mean over real pairs and both directions, and the temperature."""
        scale, real = self.scale(params), batch["mask"]
        logits = scale * outputs["zimg"] @ outputs["ztxt"].T
        negative = real[:, None] & real & ~jnp.eye(len(real), dtype=bool)
        others = jnp.where(negative, logits, -1e9)
        both = jax.nn.logsumexp(others, axis=1) + jax.nn.logsumexp(others, axis=0)
        loss = jnp.mean(both / 2 - jnp.diag(logits), where=real)
        return loss, {"temperature": 1 / scale}
