"""SigLIP (Zhai et al. 2023, "Sigmoid loss for language image pre-training"): a decision per pair.

For each image and each text of the batch, a logistic loss decides whether they belong together,
from their cosine times exp(t') plus a bias b. Both are learned. Few of the pairs of a batch are
positive: b = -10 lets training start where nearly all are classified as negative (§3.2).
"""

import math

import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray

from big_align.core.types import Batch, MeasuredLoss, ModelState, Outputs, Params
from big_align.losses.sigmoid import blockwise_sigmoid_loss
from big_align.models.dual_encoder import DualEncoder
from big_align.objectives.parts.composed import ComposedObjective
from big_align.objectives.parts.contrast import distinguish_pairs
from big_align.objectives.parts.encoders import TwoTowers, real_texts
from big_align.objectives.parts.temperature import LogScale


class Siglip(ComposedObjective):
    """Trains with a logistic loss over all pairs of images and texts.

    Images and texts with the same label are positive for each other; each image-text pair has a
    label of its own. The parameters are `model`, `log_scale`, which is t', and `bias`.

    Args:
      temperature: initial value of exp(-t') (§3.2: t' = log 10).
      min_temperature: lower bound of exp(-t'), by projection after each update; the paper has none.
      bias: initial value of b (§3.2: -10).
    """

    initial = ("temperature", "bias")

    def __init__(
        self,
        model: DualEncoder,
        mesh: Mesh,
        temperature: float = 0.1,
        min_temperature: float = 0.001,
        bias: float = -10.0,
    ):
        super().__init__(TwoTowers(model), mesh, LogScale(temperature, min_temperature))
        if not math.isfinite(bias):
            raise ValueError(f"bias = {bias} must be a finite number")
        self.bias = bias

    def init(self, rng: PRNGKeyArray, batch: Batch) -> tuple[Params, ModelState]:
        """Makes the parameters of the towers, t' and b."""
        params, model_state = super().init(rng, batch)
        return params | {"bias": jnp.float32(self.bias)}, model_state

    def loss(self, params: Params, outputs: Outputs, prepared: None, batch: Batch) -> MeasuredLoss:
        """Returns the sum over all pairs divided by the number of images (Algorithm 1)."""
        texts, label = real_texts(batch), distinguish_pairs(batch["label"])
        scale = self.scale(params)
        loss = blockwise_sigmoid_loss(
            outputs["zimg"],
            outputs["ztxt"].reshape(texts.size, -1),
            scale,
            params["bias"],
            image_label=label,
            text_label=jnp.repeat(label, texts.size // len(label)),
            image_mask=batch["mask"],
            text_mask=texts.reshape(-1),
            mesh=self.mesh,
        )
        return loss, {"temperature": 1 / scale, "bias": params["bias"]}
