"""UniCL (Yang et al. 2022): images, texts and labels in one space, contrasted by their labels.

All images and texts with the same label are positive for each other, whichever rows they are in;
each image-text pair has a label of its own (Algorithm 1). Cosines are multiplied by exp(tau), and
each row of either softmax spreads its target evenly over its own positives.

Label smoothing (appendix B.1: the regularization of Swin, whose code has 0.1) replaces a one-hot
target y over N candidates by (1 - eps) y + eps / N. With the target of eq. 2 and 3 in place of y,
candidate k of row i has

    target_ik = (1 - eps) [k in P(i)] / |P(i)| + eps / N,

with N the real rows of the batch. It sums to 1 however many positives there are. With one positive
it is the usual one. From images to texts, if each of K classes is the text of n rows, these share
its probability p and have 1 / K of the smoothing, so that image i of class y has

    -(1 - eps) log(p_y / n) - eps / K sum_k log(p_k / n),

which is cross-entropy over the classes with the usual smoothing, plus log n.

The two directions are named here by the query of the softmax:
  image_to_text  each image is classified over the texts of the batch (eq. 2),
  text_to_image  each text is classified over the images of the batch (eq. 3).
The paper's §3.2 and Algorithm 1 call them L_i2t and L_t2i. Its §3.3 swaps the names, and with them
what Table 3's third row, "L_t2i only", is: docs/papers/unicl.md has both readings.
"""

import math

from jax.sharding import Mesh

from big_align.core.types import Batch, MeasuredLoss, Outputs, Params
from big_align.models.dual_encoder import DualEncoder
from big_align.objectives.parts.composed import ComposedObjective
from big_align.objectives.parts.contrast import KEEP_LOGITS_BYTES, Contrast, distinguish_pairs
from big_align.objectives.parts.encoders import TwoTowers
from big_align.objectives.parts.temperature import LogScale


class Unicl(ComposedObjective):
    """Trains by softmax over the batch with positives from labels (UniCL eq. 1, Algorithm 1).

    Args:
      temperature: initial value of exp(-tau) (§3.4: tau = 1).
      label_smoothing: fraction of the target spread over all real candidates (B.1: Swin's, 0.1).
      direction: "both" trains the mean of the directions; "image_to_text" (eq. 2) and
        "text_to_image" (eq. 3) train one, and log the other.
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
        self.contrast = Contrast(mesh, label_smoothing, keep_logits_bytes, direction)

    def loss(self, params: Params, outputs: Outputs, prepared: None, batch: Batch) -> MeasuredLoss:
        """Returns the mean of both directions, or the one that is trained."""
        label = distinguish_pairs(batch["label"])
        return self.contrast.average(self.scale(params), outputs, batch, label)
