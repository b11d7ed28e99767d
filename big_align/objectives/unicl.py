"""UniCL (Yang et al. 2022): images, texts and labels in one space, contrasted by their labels.

All images and texts with the same label are positive for each other, whichever rows they are in;
each image-text pair has a label of its own (Algorithm 1). Cosines are multiplied by exp(tau), and
each row of either softmax spreads its target evenly over its own positives.

The two directions are named here by the query of the softmax:
  image_to_text  each image is classified over the texts of the batch (eq. 2),
  text_to_image  each text is classified over the images of the batch (eq. 3).
The paper's §3.2 and Algorithm 1 do the same, but §3.3 and Table 3 swap the names: §3.3 says that
eq. 3 becomes cross-entropy, while the cross-entropy that it arrives at (eq. 4) classifies an image
over class vectors, which is eq. 2 with class vectors as texts. Table 3's third row trains with only
the term that "resembles CE", and §4.1 explains its distance from cross-entropy by the fact that an
image is compared only with the classes of its batch. So that row is image_to_text here.

Label smoothing (B.1: the regularization of Swin) gives a query's positives 1 - e of its target,
each an equal part, and all real candidates the rest, each an equal part. With one positive that is
the usual smoothing. Where every class has the same number n of texts in the batch, all equal, the
n candidates of a class share its probability p, so that image_to_text is

    -(1 - e) log(p_y / n) - e / (n K) n sum_k log(p_k / n)
        = -(1 - e) log p_y - e / K sum_k log p_k + log n,

cross-entropy over K classes with their usual smoothing, but for a constant.
"""

import math

import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from big_align.models.dual_encoder import DualEncoder
from big_align.objectives.parts.composed import ComposedObjective
from big_align.objectives.parts.contrast import KEEP_LOGITS_BYTES, Contrast
from big_align.objectives.parts.encoders import TwoTowers
from big_align.objectives.parts.temperature import LogScale
from big_align.types import Batch, Metrics, Outputs, Params


class Unicl(ComposedObjective):
    """Trains by softmax over the batch with positives from labels (UniCL eq. 1, Algorithm 1).

    Args:
      model: the dual encoder.
      mesh: the devices over which the loss is computed.
      temperature: initial value of exp(-tau) (§3.4: tau = 1).
      min_temperature: lower bound of exp(-tau), by projection after each update.
      label_smoothing: fraction of the target spread over all real candidates (B.1: Swin's, 0.1).
      direction: "both" trains the mean of the directions; "image_to_text" (Table 3's third row) and
        "text_to_image" train one, and log the other.
      keep_logits_bytes: logits of a device are kept for the backward pass if they fit in this.

    Raises:
      ValueError: a value is out of range.
    """

    def __init__(
        self,
        model: DualEncoder,
        mesh: Mesh,
        temperature: float = math.exp(-1),
        min_temperature: float = 0.01,
        label_smoothing: float = 0.0,
        direction: str = "both",
        keep_logits_bytes: int = KEEP_LOGITS_BYTES,
    ):
        super().__init__(TwoTowers(model), mesh, LogScale(temperature, min_temperature))
        self.contrast = Contrast(mesh, label_smoothing, 1.0, keep_logits_bytes, direction)

    def loss(
        self, params: Params, outputs: Outputs, prepared: None, batch: Batch
    ) -> tuple[Float[Array, ""], Metrics]:
        """Returns the mean of both directions, or the one that is trained."""
        label = distinguish_pairs(batch["label"])
        return self.contrast.average(self.scale(params), outputs, batch, label)


def distinguish_pairs(label: Int[Array, " b"]) -> Int[Array, " b"]:
    """Gives each image-text pair a label that no other row has (Algorithm 1, TargetM).

    Args:
      label: labels of the global batch; negative for an image-text pair, and a class otherwise.

    Returns:
      Labels in which pair i has -1 - i, which is unique over all devices.
    """
    return jnp.where(label < 0, -1 - jnp.arange(len(label), dtype=label.dtype), label)
