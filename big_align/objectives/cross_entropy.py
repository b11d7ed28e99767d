"""Classification by a parametric classifier on the image tower: iCLIP (Wei et al. 2023), §3.1.

`linear` is eq. 1: inner products with one vector per class, and a bias. `cosine` is eq. 3: cosines
times exp(tau), as in CLIP. There is no text side.
"""

import flax.linen as nn
import jax
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray

from big_align.core.errors import check_known
from big_align.core.nodes import Given
from big_align.core.types import Batch, Logits, MeasuredLoss, ModelState, Outputs, Params
from big_align.losses.classification import measure_batch, softmax_cross_entropy
from big_align.models.dual_encoder import DualEncoder, normalize
from big_align.objectives.parts.classifier import init_classifier, make_classifier, run_layer
from big_align.objectives.parts.composed import ComposedObjective
from big_align.objectives.parts.encoders import ImageTower
from big_align.objectives.parts.temperature import LogScale, check_bounds

CLASSIFIERS = ("linear", "cosine")
NO_TEXTS = (
    "config.objective.name = 'cross_entropy' has no text side: evaluators that embed texts "
    "(zero_shot, retrieval) need another objective; classification needs none"
)


class CrossEntropy(ComposedObjective):
    """Trains the image tower, or a classifier on a fixed one, with the classes of its images.

    Rows that are masked or have no label take no part, and neither do labels beyond the last class;
    the metric `labels_outside` counts the latter. The parameters are `model`, without those of a
    text tower, `classifier`, and for "cosine" `log_scale`.

    Args:
      model: the dual encoder; a text tower is not used.
      mesh: the devices; unused, since every row is independent.
      classifier: "linear" or "cosine".
      label_smoothing: fraction of the target spread over all classes.
      temperature: for "cosine", initial value of exp(-tau).
      min_temperature: for "cosine", lower bound of exp(-tau).
    """

    def __init__(
        self,
        model: DualEncoder,
        mesh: Mesh,
        num_classes: Given[int],
        classifier: str = "linear",
        label_smoothing: float = 0.0,
        temperature: float = 0.07,
        min_temperature: float = 0.01,
    ):
        super().__init__(ImageTower(model, NO_TEXTS), mesh)
        check_known("classifier", classifier, CLASSIFIERS)
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing = {label_smoothing} is not in [0, 1)")
        check_bounds(temperature, min_temperature)
        cosine = classifier == "cosine"
        # It scales the classifier's cosines; there are no embeddings to compare.
        self.log_scale = LogScale(temperature, min_temperature) if cosine else None
        # Weights of about unit length, since only their direction counts.
        options = {"kernel_init": nn.initializers.lecun_normal(), "use_bias": False}
        self.classifier = make_classifier(num_classes, **options if cosine else {})
        self.label_smoothing = label_smoothing

    def init(self, rng: PRNGKeyArray, batch: Batch) -> tuple[Params, ModelState]:
        """Makes the parameters of the image tower and of the classifier, and tau."""
        params, model_state = super().init(rng, batch)
        head = init_classifier(self.classifier, jax.random.fold_in(rng, 1), self.model)
        own = self.log_scale.init() if self.log_scale else {}
        return params | {"classifier": head} | own, model_state

    def logits(self, params: Params, features: Float[Array, "b f"]) -> Float[Array, "b c"]:
        """Returns the logits of the softmax."""
        weights = params["classifier"]
        if not self.log_scale:
            return run_layer(self.classifier, weights, features)
        weights = {"kernel": normalize(weights["kernel"].T).T}
        cosine = run_layer(self.classifier, weights, normalize(features))
        return self.log_scale.scale(params) * cosine

    def loss(self, params: Params, outputs: Outputs, prepared: None, batch: Batch) -> MeasuredLoss:
        """Returns the mean cross-entropy of the labeled rows."""
        logits = self.logits(params, outputs["features"])
        targets = batch["label"], batch["mask"]
        metrics = measure_batch(logits, *targets)
        if self.log_scale:
            metrics["temperature"] = 1 / self.log_scale.scale(params)
        return softmax_cross_entropy(logits, *targets, self.label_smoothing), metrics

    def project(self, params: Params) -> Params:
        """Keeps the scale of the cosines below its bound."""
        return self.log_scale.project(params) if self.log_scale else params

    def export_classifier(self, params: Params) -> Params:
        """Returns a kernel and a bias; or a kernel alone, for features of unit length."""
        weights = params["classifier"]
        if not self.log_scale:
            return dict(weights)
        return {"kernel": self.log_scale.scale(params) * normalize(weights["kernel"].T).T}

    def classify(self, params: Params, model_state: ModelState, batch: Batch) -> Logits:
        """Returns the logits of the training classes, in evaluation mode."""
        return self.logits(params, self.image_features(params, model_state, batch))
