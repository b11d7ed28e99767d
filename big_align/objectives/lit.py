"""LiT (Zhai et al. 2022): a text tower learns to read out a locked image tower.

The second stage of MLCD (An et al. 2024, §4.1 and A.1): the image encoder is frozen and a text
encoder is trained from scratch by contrastive learning. The loss is CLIP's.
"""

from jax.sharding import Mesh
from jaxtyping import Array, Float

from big_align.core.types import Batch, Metrics, Outputs, Params
from big_align.models.dual_encoder import DualEncoder
from big_align.objectives.parts.composed import ComposedObjective
from big_align.objectives.parts.contrast import KEEP_LOGITS_BYTES, Contrast
from big_align.objectives.parts.encoders import TwoTowers, lock_image
from big_align.objectives.parts.temperature import LogScale


class Lit(ComposedObjective):
    """Trains the text tower, up to two linear projections, and the temperature with CLIP's loss.

    The tower itself is locked; its parameters come from `config.init.image`. With
    `model.image_projection = False` its features are the embedding; True adds a linear layer that
    was not part of it and is trained. If the projection does come with the tower
    (`config.init.all` from a dual encoder), "model/project_image" in `config.optimizer.frozen`
    locks it too.

    A batch with `image_embedding` needs no images: float [b f], the tower's pooled features, as
    written by the tool embed. They may be scaled to unit length if there is no projection.
    Evaluation runs the tower, so its weights are needed anyway.

    Args:
      model: the dual encoder.
      mesh: the devices over which the loss is computed.
      temperature: initial value of exp(-tau) (CLIP §2.5: 0.07).
      min_temperature: lower bound of exp(-tau) (CLIP §2.5: logits scaled by 100 at most).
      label_smoothing: fraction of the target spread over the batch.
      keep_logits_bytes: logits of a device are kept for the backward pass if they fit in this.

    Raises:
      ValueError: a value is out of range.
    """

    def __init__(
        self,
        model: DualEncoder,
        mesh: Mesh,
        temperature: float = 0.07,
        min_temperature: float = 0.01,
        label_smoothing: float = 0.0,
        keep_logits_bytes: int = KEEP_LOGITS_BYTES,
    ):
        super().__init__(TwoTowers(lock_image(model)), mesh, LogScale(temperature, min_temperature))
        self.contrast = Contrast(mesh, label_smoothing, keep_logits_bytes)

    def loss(
        self, params: Params, outputs: Outputs, prepared: None, batch: Batch
    ) -> tuple[Float[Array, ""], Metrics]:
        """Returns the mean of both directions."""
        return self.contrast.average(self.scale(params), outputs, batch)
