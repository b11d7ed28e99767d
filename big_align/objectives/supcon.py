"""SupCon (Khosla et al. 2020): views of images of one class attract each other; no texts.

Training has two stages, and this is the first: it trains the tower, followed by a projection head
that only the loss uses. The second stage trains a classifier on the locked tower: a config with the
same image tower, `config.objective.name = "cross_entropy"`, `config.model.locked = ("image",)`, and
`config.init.image` naming this stage's workdir. k-NN and linear probe need no second stage.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray

from big_align.core.errors import UserError, check_at_least
from big_align.core.types import Batch, Features, MeasuredLoss, ModelState, Outputs, Params
from big_align.losses.supervised_contrastive import blockwise_supervised_contrastive_loss
from big_align.models.dual_encoder import DualEncoder, normalize
from big_align.models.parts import layers
from big_align.objectives.parts.classifier import run_layer
from big_align.objectives.parts.composed import ComposedObjective
from big_align.objectives.parts.contrast import distinguish_pairs
from big_align.objectives.parts.encoders import Encoder, pool_images

NO_TEXTS = (
    "supcon has no text side: evaluate it by image features (k-NN, linear probe), or train a "
    "classifier on its tower with the objective cross_entropy"
)


class SupCon(ComposedObjective):
    """Trains the image tower by supervised contrast of several views per image.

    The batch's `image` is [b v h w 3] with v >= 2 views. The parameters are `model`, those of the
    image tower, and `head`, those of the projection. A captioned image is a class of its own: its
    views are positive only for each other.

    Args:
      model: the encoder; its text tower, if any, is left out.
      temperature: divisor of the cosines, not learned (Khosla et al. §4: 0.1).
      projection_dim: size of the head's output (§3: 128).
    """

    initial = ()
    takes_views = True

    def __init__(
        self, model: DualEncoder, mesh: Mesh, temperature: float = 0.1, projection_dim: int = 128
    ):
        super().__init__(ViewTower(model, projection_dim), mesh)
        if temperature <= 0:
            raise ValueError(f"temperature = {temperature} must be positive")
        check_at_least(1, projection_dim=projection_dim)
        self.divisor = temperature

    def loss(self, params: Params, outputs: Outputs, prepared: None, batch: Batch) -> MeasuredLoss:
        """Returns the supervised contrastive loss over all views of all images."""
        zviews = outputs["zviews"]
        loss = blockwise_supervised_contrastive_loss(
            zviews.reshape(-1, zviews.shape[-1]),
            jnp.repeat(distinguish_pairs(batch["label"]), zviews.shape[1]),
            jnp.float32(1 / self.divisor),
            jnp.repeat(batch["mask"], zviews.shape[1]),
            mesh=self.mesh,
        )
        return loss, {}


class ViewTower(Encoder):
    """Encodes several views of each image, and projects their features."""

    def __init__(self, model: DualEncoder, projection_dim: int):
        super().__init__(model, NO_TEXTS)
        self.head = ProjectionHead(projection_dim)

    def init(self, rng: PRNGKeyArray, batch: Batch) -> tuple[Params, ModelState]:
        """Makes the parameters of the image tower and of the head, and BatchNorm statistics."""
        model_rng, head_rng = jax.random.split(rng)
        params, state = self.init_by("image_features", model_rng, _views(batch)[:, 0])
        features = jnp.zeros((1, self.model.image.output_dim))
        return params | {"head": self.head.init(head_rng, features)["params"]}, state

    def encode(
        self, params: Params, model_state: ModelState, batch: Batch, rng: PRNGKeyArray
    ) -> tuple[Outputs, ModelState]:
        """Returns `zviews` [b v d], the unit-length projections of all views."""
        views = _views(batch)
        each = {"image": views.reshape(-1, *views.shape[2:])}
        if "key" in batch:
            keys = jax.vmap(lambda key: jax.random.split(key, views.shape[1]))(batch["key"])
            each["key"] = keys.reshape(len(each["image"]), -1)
        features, state = self.train(pool_images, params, model_state, each, rng)
        z = normalize(run_layer(self.head, params["head"], features))
        return {"zviews": z.reshape(*views.shape[:2], -1)}, state

    def embed_image(self, params: Params, model_state: ModelState, batch: Batch) -> Features:
        """Returns the tower's features at unit length; `image` is [b h w 3].

        The head is left out: features before it separate classes better (Khosla et al. §3).
        """
        return normalize(self.image_features(params, model_state, batch))


class ProjectionHead(nn.Module):
    """A hidden layer as wide as the features, and a linear layer (Khosla et al. §3, "Proj")."""

    dim: int

    @nn.compact
    def __call__(self, features: Float[Array, "b f"]) -> Float[Array, "b d"]:
        """Projects features; the result does not have unit length yet."""
        init: dict[str, Any] = {"kernel_init": nn.initializers.lecun_normal()}
        width = features.shape[-1]
        hidden = layers.Dense(width, ("embed", "mlp"), name="hidden", **init)(features)
        return layers.Dense(self.dim, ("mlp", None), name="projection", **init)(nn.relu(hidden))


def _views(batch: Mapping) -> Array:
    """Returns the images of a training batch: at least two views of each."""
    image = batch["image"]
    if image.ndim != 5 or image.shape[1] < 2:
        raise UserError(
            f"supcon needs at least two views an image, [b v h w 3], but images are "
            f"{list(image.shape)}: set config.data.views_per_image = 2"
        )
    return image
