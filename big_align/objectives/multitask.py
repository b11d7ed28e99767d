"""The naive multi-task baseline of iCLIP (Wei et al. 2023, §4.2): one image tower, two heads.

Labeled images train a linear classifier on the pooled features (eq. 1), captioned images train with
CLIP's loss and the text tower, and the two losses are averaged. Eq. 2 as printed has one direction,
from images to texts; CLIP's own loss has both.
"""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray

from big_align.core.nodes import Given
from big_align.core.types import Batch, Logits, MeasuredLoss, ModelState, Outputs, Params
from big_align.losses.classification import labeled_rows, measure_batch, softmax_cross_entropy
from big_align.models.dual_encoder import DualEncoder
from big_align.objectives.parts.classifier import init_classifier, make_classifier, run_layer
from big_align.objectives.parts.composed import ComposedObjective
from big_align.objectives.parts.contrast import KEEP_LOGITS_BYTES, Contrast
from big_align.objectives.parts.encoders import Encoder, flatten_texts, pool_images, real_texts
from big_align.objectives.parts.temperature import LogScale


class MultiTask(ComposedObjective):
    """Trains a classifier on labeled rows, and contrasts captioned rows with each other.

    A row with a label in [0, `num_classes`) takes part only in the classifier's loss, and one with
    a negative label only in the contrast; a label beyond the last class takes part in neither and
    is counted in the metric `labels_outside`. The loss is the mean of the two; in a batch with only
    one kind of rows, it is the loss of that kind. Texts of labeled rows are encoded but not used.

    Args:
      temperature: initial value of exp(-tau) for the contrast.
      label_smoothing: fraction of the target spread over the classes or the batch, in both losses.
      direction: of the contrast: "both" trains the mean of the directions; "image_to_text" (eq. 2)
        and "text_to_image" train one, and log the other.
    """

    def __init__(
        self,
        model: DualEncoder,
        mesh: Mesh,
        num_classes: Given[int],
        temperature: float = 0.07,
        min_temperature: float = 0.01,
        label_smoothing: float = 0.0,
        direction: str = "both",
        keep_logits_bytes: int = KEEP_LOGITS_BYTES,
    ):
        super().__init__(FeaturesAndTexts(model), mesh, LogScale(temperature, min_temperature))
        self.contrast = Contrast(mesh, label_smoothing, keep_logits_bytes, direction)
        self.label_smoothing = label_smoothing
        self.num_classes = num_classes
        self.classifier = make_classifier(num_classes)

    def init(self, rng: PRNGKeyArray, batch: Batch) -> tuple[Params, ModelState]:
        """Makes the parameters of the towers and of the classifier, and tau."""
        params, model_state = super().init(rng, batch)
        head = init_classifier(self.classifier, jax.random.fold_in(rng, 1), self.model)
        return params | {"classifier": head}, model_state

    def loss(self, params: Params, outputs: Outputs, prepared: None, batch: Batch) -> MeasuredLoss:
        """Returns the mean of the losses of the two tasks."""
        label, mask = batch["label"], batch["mask"]
        captioned = {**batch, "mask": mask & (label < 0)}
        contrastive, metrics = self.contrast.average(self.scale(params), outputs, captioned)

        logits = self.logits(params, outputs["features"])
        classification = softmax_cross_entropy(logits, label, mask, self.label_smoothing)

        # Each loss is 0 if it has no rows.
        kinds = labeled_rows(label, mask, self.num_classes), real_texts(captioned)
        tasks = sum(kind.any().astype(jnp.float32) for kind in kinds)
        total = (classification + contrastive) / jnp.maximum(tasks, 1)
        metrics |= measure_batch(logits, label, mask)
        losses = {"classification_loss": classification, "contrastive_loss": contrastive}
        return total, metrics | losses

    def logits(self, params: Params, features: Float[Array, "b f"]) -> Float[Array, "b c"]:
        """Returns the logits of the classifier's softmax."""
        return run_layer(self.classifier, params["classifier"], features)

    def export_classifier(self, params: Params) -> Params:
        """Returns the classifier's kernel and bias."""
        return dict(params["classifier"])

    def classify(self, params: Params, model_state: ModelState, batch: Batch) -> Logits:
        """Returns the classifier's logits of the training classes, in evaluation mode."""
        return self.logits(params, self.image_features(params, model_state, batch))


class FeaturesAndTexts(Encoder):
    """Encodes images and texts, and also returns the image tower's pooled features."""

    def encode(
        self, params: Params, model_state: ModelState, batch: Batch, rng: PRNGKeyArray
    ) -> tuple[Outputs, ModelState]:
        """Returns `features` [b f], and `zimg` and `ztxt` like `TwoTowers`."""
        (features, zimg, ztxt), new_state = self.train(_encode_all, params, model_state, batch, rng)
        ztxt = ztxt.reshape(*batch["text"].shape[:-1], -1)
        return {"features": features, "zimg": zimg, "ztxt": ztxt}, new_state


def _encode_all(
    model: DualEncoder, batch: Batch
) -> tuple[Float[Array, "b f"], Float[Array, "b d"], Float[Array, "n d"]]:
    """Encodes in training mode; features and embeddings of the images come from one pass."""
    features = pool_images(model, batch)
    zimg = model.embed_features(features, train=True)
    return features, zimg, model.encode_text(*flatten_texts(batch), train=True)
