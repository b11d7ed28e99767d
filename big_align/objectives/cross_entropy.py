"""Classification by a parametric classifier on the image tower: iCLIP (Wei et al. 2023), §3.1.

`linear` is eq. 1: inner products with a vector a class, and a bias. `cosine` is eq. 3: cosines,
times exp(tau) as in CLIP. There is no text side.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray

from big_align.errors import UserError
from big_align.losses.classification import measure_batch, softmax_cross_entropy
from big_align.models import layers
from big_align.models.dual_encoder import DualEncoder, normalize
from big_align.objectives.two_tower import TwoTower, replace_leaf
from big_align.types import Batch, Metrics, ModelState, Outputs, Params

CLASSIFIERS = ("linear", "cosine")


def make_classifier(num_classes: int, **options) -> layers.Dense:
    """Makes the layer from pooled features to classes; its classes are split like a vocabulary.

    Raises:
      ValueError: there are fewer than two classes.
    """
    if num_classes < 2:
        raise ValueError(f"num_classes = {num_classes} must be at least 2")
    return layers.Dense(num_classes, ("embed", "vocab"), **options)


def init_classifier(classifier: layers.Dense, rng: PRNGKeyArray, model: DualEncoder) -> Params:
    """Makes the parameters of a classifier for the features of a model's image tower."""
    return classifier.init(rng, jnp.zeros((1, model.image.output_dim)))["params"]


class CrossEntropy(TwoTower):
    """Trains the image tower, or a classifier on a fixed one, by the classes of its images.

    Rows that are masked or have no label take no part, and neither do labels beyond the last class;
    the metric `labels_outside` counts the latter. The parameters are `model`, without those of a
    text tower, `classifier`, and for "cosine" `log_scale`.

    Args:
      model: the dual encoder; a text tower is not used.
      mesh: the devices; unused, since every row is by itself.
      num_classes: length of the list that labels count into.
      classifier: "linear" or "cosine".
      label_smoothing: share of the target spread over all classes.
      temperature: of "cosine", initial value of exp(-tau).
      min_temperature: of "cosine", lower bound of exp(-tau).
      train_image_tower: False keeps the image tower in evaluation mode and without gradient; its
        parameters stay as they are if the optimizer freezes `frozen`.

    Raises:
      ValueError: a value is out of its range.
    """

    def __init__(
        self,
        model: DualEncoder,
        mesh: Mesh,
        num_classes: int,
        classifier: str = "linear",
        label_smoothing: float = 0.0,
        temperature: float = 0.07,
        min_temperature: float = 0.01,
        train_image_tower: bool = True,
    ):
        super().__init__(model)
        if classifier not in CLASSIFIERS:
            known = ", ".join(CLASSIFIERS)
            raise ValueError(f"classifier = {classifier!r} is unknown; known: {known}")
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing = {label_smoothing} is not in [0, 1)")
        if not 0 < min_temperature <= temperature:
            raise ValueError(
                f"temperature = {temperature} must be at least min_temperature = "
                f"{min_temperature}, which must be positive"
            )
        self.mesh = mesh
        self.cosine = classifier == "cosine"
        # Weights of about unit length, where only their direction counts.
        options = {"kernel_init": nn.initializers.lecun_normal(), "use_bias": False}
        self.classifier = make_classifier(num_classes, **options if self.cosine else {})
        self.label_smoothing = label_smoothing
        self.temperature = temperature
        self.min_temperature = min_temperature
        self.train_image_tower = train_image_tower

    @property
    def frozen(self) -> tuple[str, ...]:
        """Paths of parameters that the optimizer has to leave alone."""
        return () if self.train_image_tower else ("model/image",)

    def init(self, rng: PRNGKeyArray, batch: Batch) -> tuple[Params, ModelState]:
        """Makes the image tower's parameters, the classifier's, and tau."""
        variables = dict(self.model.init(rng, batch["image"], method="image_features"))
        params = {
            "model": variables.pop("params"),
            "classifier": init_classifier(self.classifier, jax.random.fold_in(rng, 1), self.model),
        }
        if self.cosine:
            params["log_scale"] = jnp.float32(-math.log(self.temperature))
        return params, variables

    def encode(
        self, params: Params, model_state: ModelState, batch: Batch, rng: PRNGKeyArray
    ) -> tuple[Outputs, ModelState]:
        """Returns the pooled `features` [b f] of the images."""
        if not self.train_image_tower:
            features = self.image_features(params, model_state, batch)
            return {"features": jax.lax.stop_gradient(features)}, model_state
        features, new_state = self.model.apply(
            {"params": params["model"], **model_state},
            batch["image"],
            train=True,
            mutable=list(model_state),
            rngs={"dropout": rng},
            method="image_features",
        )
        return {"features": features}, {**model_state, **new_state}

    def logits(self, params: Params, features: Float[Array, "b f"]) -> Float[Array, "b c"]:
        """Returns what the softmax normalizes."""
        weights = params["classifier"]
        if not self.cosine:
            return self.classifier.apply({"params": weights}, features)
        weights = {"kernel": normalize(weights["kernel"].T).T}
        cosine = self.classifier.apply({"params": weights}, normalize(features))
        return jnp.exp(params["log_scale"]) * cosine

    def loss(
        self, params: Params, outputs: Outputs, prepared: None, batch: Batch
    ) -> tuple[Float[Array, ""], Metrics]:
        """Returns the mean cross-entropy of the labeled rows."""
        logits = self.logits(params, outputs["features"])
        targets = batch["label"], batch["mask"]
        metrics = measure_batch(logits, *targets)
        if self.cosine:
            metrics["temperature"] = jnp.exp(-params["log_scale"])
        return softmax_cross_entropy(logits, *targets, self.label_smoothing), metrics

    def project(self, params: Params) -> Params:
        """Keeps the scale of the cosines below its bound."""
        if not self.cosine:
            return params
        bounded = jnp.minimum(params["log_scale"], -math.log(self.min_temperature))
        return replace_leaf(params, "log_scale", bounded)

    def classify(
        self, params: Params, model_state: ModelState, batch: Batch
    ) -> Float[Array, "b c"]:
        """Returns the logits of the training classes, in evaluation mode."""
        return self.logits(params, self.image_features(params, model_state, batch))

    def embed_image(
        self, params: Params, model_state: ModelState, batch: Batch
    ) -> Float[Array, "b f"]:
        """Returns the image tower's features at unit length, in evaluation mode."""
        return normalize(self.image_features(params, model_state, batch))

    def embed_text(
        self, params: Params, model_state: ModelState, batch: Batch
    ) -> Float[Array, "b d"]:
        """Raises a UserError: nothing was trained to embed texts."""
        raise UserError(
            "config.objective.name = 'cross_entropy' has no text side: evaluators that embed texts "
            "(zero_shot, retrieval) need another objective; classification needs none"
        )
