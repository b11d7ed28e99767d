"""An objective: each pair against the hardest negative of the batch (VSE++, Faghri et al. 2018)."""

import jax.numpy as jnp
from jax.sharding import Mesh

from big_align.core.types import Batch, MeasuredLoss, Outputs, Params
from big_align.models.dual_encoder import DualEncoder
from big_align.objectives.parts.composed import ComposedObjective
from big_align.objectives.parts.encoders import TwoTowers


class HardestNegative(ComposedObjective):
    """Trains by a hinge in both directions, with one caption for each image.

    Args:
      margin: by how much the cosine of a pair should exceed that of its hardest negative.
    """

    def __init__(self, model: DualEncoder, mesh: Mesh, margin: float = 0.2):
        super().__init__(TwoTowers(model), mesh)
        self.margin = margin

    def loss(self, params: Params, outputs: Outputs, prepared: None, batch: Batch) -> MeasuredLoss:
        """Returns the mean over real pairs, and the fraction of images that keep the margin."""
        cosines = outputs["zimg"] @ outputs["ztxt"].T
        real, own = batch["mask"], jnp.diag(cosines)
        negative = real[:, None] & real & ~jnp.eye(len(own), dtype=bool)
        others = jnp.where(negative, cosines, -1.0)
        to_text = jnp.maximum(self.margin + others.max(axis=1) - own, 0.0)
        to_image = jnp.maximum(self.margin + others.max(axis=0) - own, 0.0)
        loss = jnp.mean(to_text + to_image, where=real)
        return loss, {"kept": jnp.mean(to_text == 0.0, where=real)}
