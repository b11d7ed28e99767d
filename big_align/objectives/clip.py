"""CLIP (Radford et al. 2021): cosines times exp(tau), and the mean of both directions.

One direction alone, from images to texts, is eq. 2 of iCLIP (Wei et al. 2023).
"""

from jax.sharding import Mesh

from big_align.core.types import Batch, MeasuredLoss, Outputs, Params
from big_align.models.dual_encoder import DualEncoder
from big_align.objectives.parts.composed import ComposedObjective
from big_align.objectives.parts.contrast import KEEP_LOGITS_BYTES, Contrast
from big_align.objectives.parts.encoders import TwoTowers
from big_align.objectives.parts.temperature import LogScale


class Clip(ComposedObjective):
    """Trains by softmax in both directions, or in one.

    Args:
      temperature: initial value of exp(-tau) (CLIP §2.5: 0.07).
      min_temperature: lower bound of exp(-tau) (CLIP §2.5: logits scaled by 100 at most).
      label_smoothing: fraction of the target spread over the batch.
      direction: "both" trains the mean of the directions; "image_to_text" and "text_to_image" train
        one, and log the other.
    """

    locked: tuple[str, ...] = ()
    """Towers that are locked besides those that the model locks."""

    def __init__(
        self,
        model: DualEncoder,
        mesh: Mesh,
        temperature: float = 0.07,
        min_temperature: float = 0.01,
        label_smoothing: float = 0.0,
        direction: str = "both",
        keep_logits_bytes: int = KEEP_LOGITS_BYTES,
    ):
        model = model.clone(locked=tuple(dict.fromkeys((*self.locked, *model.locked))))
        super().__init__(TwoTowers(model), mesh, LogScale(temperature, min_temperature))
        self.contrast = Contrast(mesh, label_smoothing, keep_logits_bytes, direction)

    def loss(self, params: Params, outputs: Outputs, prepared: None, batch: Batch) -> MeasuredLoss:
        """Returns the mean of both directions, or the one that is trained."""
        return self.contrast.average(self.scale(params), outputs, batch)
