"""ALIGN (Jia et al. 2021, §4.1): softmax over in-batch pairs gathered from every device.

The loss is the sum of image-to-text (eq. 1) and text-to-image (eq. 2) classification. Cosines are
divided by a learned temperature that starts at 1 and is shared by both directions.
"""

from jax.sharding import Mesh

from big_align.core.types import Batch, MeasuredLoss, Outputs, Params
from big_align.models.dual_encoder import DualEncoder
from big_align.objectives.parts.composed import ComposedObjective
from big_align.objectives.parts.contrast import KEEP_LOGITS_BYTES, Contrast, describe_directions
from big_align.objectives.parts.encoders import TwoTowers
from big_align.objectives.parts.temperature import Divisor


class Align(ComposedObjective):
    """Trains by the normalized softmax in both directions.

    Args:
      temperature: initial value of the divisor of the cosines (§5: 1.0).
      learn_temperature: False keeps the initial value (Table 8: 1/128, 1/64, 1/32).
      min_temperature: lower bound, by projection after each update.
      label_smoothing: fraction of the target spread over the batch (§5: 0.1).
      negative_fraction: fraction 1/n of the batch that takes part in each softmax, in n groups.
    """

    def __init__(
        self,
        model: DualEncoder,
        mesh: Mesh,
        temperature: float = 1.0,
        learn_temperature: bool = True,
        min_temperature: float = 0.005,
        label_smoothing: float = 0.1,
        negative_fraction: float = 1.0,
        keep_logits_bytes: int = KEEP_LOGITS_BYTES,
    ):
        divisor = Divisor(temperature, min_temperature, learn_temperature)
        super().__init__(TwoTowers(model), mesh, divisor)
        self.contrast = Contrast(
            mesh, label_smoothing, keep_logits_bytes, negative_fraction=negative_fraction
        )

    def loss(self, params: Params, outputs: Outputs, prepared: None, batch: Batch) -> MeasuredLoss:
        """Returns the sum of both directions (eq. 1 + eq. 2)."""
        scale = self.scale(params)
        image_to_text, text_to_image = directions = self.contrast(scale, outputs, batch)
        return image_to_text + text_to_image, describe_directions(directions, scale)
