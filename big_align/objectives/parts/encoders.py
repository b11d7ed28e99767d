"""How an objective encodes a batch: by two towers, by a locked image tower and a text tower, or by
an image tower alone. An objective has one of these and adds a loss.

Parameters and statistics are those of a dual encoder: {"params": params["model"], **model_state}.
"""

from typing import Any

import jax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from big_align.errors import UserError
from big_align.models.dual_encoder import DualEncoder, normalize
from big_align.types import Batch, ModelState, Outputs, Params


class Encoder:
    """What encoders share: evaluation, by which no statistics move.

    Args:
      model: the dual encoder.
      no_texts: where texts are not trained, why there are none to embed, and what to do.
    """

    frozen: tuple[str, ...] = ()
    """Paths of parameters that the optimizer has to leave alone."""

    def __init__(self, model: DualEncoder, no_texts: str = ""):
        self.model = model
        self.no_texts = no_texts

    def init_by(
        self, method: str | None, rng: PRNGKeyArray, *inputs: Array
    ) -> tuple[Params, ModelState]:
        """Makes the parameters and statistics that a method of the model uses."""
        variables = dict(self.model.init(rng, *inputs, method=method))
        return {"model": variables.pop("params")}, variables

    def train(
        self,
        params: Params,
        model_state: ModelState,
        rng: PRNGKeyArray,
        *inputs: Any,
        **options: Any,
    ) -> tuple[Any, ModelState]:
        """Applies a method of the model in training mode.

        Args:
          params: `model` is the model's.
          model_state: running statistics.
          rng: of dropout.
          inputs: of the method.
          options: its name, and what else it takes.

        Returns:
          What the method returns, and the new statistics.
        """
        outputs, new_state = self.model.apply(
            {"params": params["model"], **model_state},
            *inputs,
            mutable=list(model_state),
            rngs={"dropout": rng},
            **options,
        )
        # A tower without running statistics leaves its collections out of what it returns.
        return outputs, {**model_state, **new_state}

    def apply(
        self, method: str, params: Params, model_state: ModelState, *inputs: Array
    ) -> Any:
        """Applies a method of the model in evaluation mode."""
        return self.model.apply({"params": params["model"], **model_state}, *inputs, method=method)

    def image_features(
        self, params: Params, model_state: ModelState, batch: Batch
    ) -> Float[Array, "b f"]:
        """Returns the pooled features of the image tower."""
        return self.apply("image_features", params, model_state, batch["image"])

    def embed_image(
        self, params: Params, model_state: ModelState, batch: Batch
    ) -> Float[Array, "b d"]:
        """Returns unit-length image embeddings."""
        return self.apply("encode_image", params, model_state, batch["image"])

    def embed_text(
        self, params: Params, model_state: ModelState, batch: Batch
    ) -> Float[Array, "b d"]:
        """Returns unit-length text embeddings.

        Raises:
          UserError: nothing was trained to embed texts.
        """
        if self.no_texts:
            raise UserError(self.no_texts)
        texts = batch["text"], batch["text_mask"]
        return self.apply("encode_text", params, model_state, *texts)


class TwoTowers(Encoder):
    """Encodes images and their texts."""

    def init(self, rng: PRNGKeyArray, batch: Batch) -> tuple[Params, ModelState]:
        """Makes fresh parameters and statistics of both towers."""
        return self.init_by(None, rng, batch["image"], *flatten_texts(batch))

    def encode(
        self, params: Params, model_state: ModelState, batch: Batch, rng: PRNGKeyArray
    ) -> tuple[Outputs, ModelState]:
        """Returns `zimg` [b d] and `ztxt` [b d], or [b k d] with k texts an image; unit length."""
        inputs = batch["image"], *flatten_texts(batch)
        (zimg, ztxt), state = self.train(params, model_state, rng, *inputs, train=True)
        return {"zimg": zimg, "ztxt": ztxt.reshape(*batch["text"].shape[:-1], -1)}, state


class LockedImageTower(Encoder):
    """Encodes texts by the text tower, and images by a tower that does not learn.

    The image tower runs in evaluation mode, once a step and without gradient: nothing of it is kept
    for the backward pass and its statistics stay. A batch with `image_embedding`, float [b f], the
    tower's pooled features, needs no images.
    """

    frozen = ("model/image",)

    def init(self, rng: PRNGKeyArray, batch: Batch) -> tuple[Params, ModelState]:
        """Makes fresh parameters and statistics of both towers."""
        return self.init_by(None, rng, batch["image"], *flatten_texts(batch))

    def locked_features(
        self, params: Params, model_state: ModelState, batch: Batch
    ) -> Float[Array, "b f"]:
        """Returns the pooled features of the image tower, which no gradient reaches.

        Raises:
          UserError: embeddings were given that are not as wide as the tower.
        """
        if "image_embedding" not in batch:
            # Stopped at the parameters, so that differentiation never enters the tower.
            return self.image_features(jax.lax.stop_gradient(params), model_state, batch)
        features, width = batch["image_embedding"], self.model.image.output_dim
        if features.shape[-1] != width:
            raise UserError(
                f"image_embedding has {features.shape[-1]} numbers an image and the image tower "
                f"gives {width}: embed the data with the features of this tower"
            )
        return jax.lax.stop_gradient(features.astype(jax.numpy.float32))

    def encode(
        self, params: Params, model_state: ModelState, batch: Batch, rng: PRNGKeyArray
    ) -> tuple[Outputs, ModelState]:
        """Returns `zimg` [b d] and `ztxt` [b d], or [b k d] with k texts an image; unit length."""
        variables = {"params": params["model"], **model_state}
        features = self.locked_features(params, model_state, batch)
        zimg = self.model.apply(variables, features, method="embed_features")
        ztxt = self.model.apply(
            variables,
            *flatten_texts(batch),
            train=True,
            rngs={"dropout": rng},
            method="encode_text",
        )
        return {"zimg": zimg, "ztxt": ztxt.reshape(*batch["text"].shape[:-1], -1)}, model_state


class ImageTower(Encoder):
    """Encodes images alone, and to the features that the tower pools.

    Args:
      model: the dual encoder; its text tower, if any, is not used.
      no_texts: why there are no texts to embed, and what to do.
      locked: keeps the tower in evaluation mode and without gradient.
    """

    def __init__(self, model: DualEncoder, no_texts: str, locked: bool = False):
        super().__init__(model, no_texts)
        self.locked = locked
        self.frozen = LockedImageTower.frozen if locked else ()

    def init(self, rng: PRNGKeyArray, batch: Batch) -> tuple[Params, ModelState]:
        """Makes fresh parameters and statistics of the image tower."""
        return self.init_by("image_features", rng, batch["image"])

    def encode(
        self, params: Params, model_state: ModelState, batch: Batch, rng: PRNGKeyArray
    ) -> tuple[Outputs, ModelState]:
        """Returns `features` [b f]."""
        if self.locked:
            features = self.image_features(params, model_state, batch)
            return {"features": jax.lax.stop_gradient(features)}, model_state
        features, state = self.train(
            params, model_state, rng, batch["image"], train=True, method="image_features"
        )
        return {"features": features}, state

    def embed_image(
        self, params: Params, model_state: ModelState, batch: Batch
    ) -> Float[Array, "b f"]:
        """Returns the features at unit length."""
        return normalize(self.image_features(params, model_state, batch))


class ProjectedImageTower(Encoder):
    """Encodes images alone, to embeddings by the model's projection.

    Args:
      model: the dual encoder; its text tower, if any, is left out.
      no_texts: why there are no texts to embed, and what to do.
    """

    def __init__(self, model: DualEncoder, no_texts: str):
        super().__init__(model.clone(text=None), no_texts)

    def init(self, rng: PRNGKeyArray, batch: Batch) -> tuple[Params, ModelState]:
        """Makes fresh parameters and statistics of the image tower and its projection."""
        return self.init_by("encode_image", rng, batch["image"])

    def encode(
        self, params: Params, model_state: ModelState, batch: Batch, rng: PRNGKeyArray
    ) -> tuple[Outputs, ModelState]:
        """Returns `zimg` [b d], unit length."""
        zimg, state = self.train(
            params, model_state, rng, batch["image"], train=True, method="encode_image"
        )
        return {"zimg": zimg}, state


def flatten_texts(batch: Batch) -> tuple[Array, Array]:
    """Returns all texts of a batch, one below the other, and their masks."""
    length = batch["text"].shape[-1]
    return tuple(jax.numpy.reshape(batch[k], (-1, length)) for k in ("text", "text_mask"))


def real_texts(batch: Batch) -> Bool[Array, "b *k"]:
    """Tells which texts there are: of real examples, and with tokens where there may be several."""
    if batch["text_mask"].ndim == 2:
        return batch["mask"]
    return batch["mask"][:, None] & batch["text_mask"].any(-1)
