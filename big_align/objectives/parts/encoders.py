"""How an objective encodes a batch: with two towers, or with an image tower alone.

An objective has one of these encoders and adds a loss. Parameters and statistics are those of a
dual encoder: {"params": params["model"], **model_state}. A batch may hold the pooled features of a
locked tower instead of the tower's input.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from big_align.core.errors import ConfigError, UserError
from big_align.core.module_paths import split_path
from big_align.core.types import Batch, Embeddings, Features, ModelState, Outputs, Params
from big_align.models.dual_encoder import TOWERS, DualEncoder, normalize
from big_align.models.parts.kept_patches import DRAWS, KEYS

FEATURES: Mapping[str, str] = {"image_embedding": "image", "text_embedding": "text"}
"""Fields of a batch that hold pooled features, and the tower of each."""


class Encoder:
    """What encoders share: evaluation, which does not change any statistics.

    `no_texts` says why there are no texts to embed, and what to do; then the text tower, if any, is
    left out. It is empty if texts are trained.
    """

    takes_features: tuple[str, ...] = ()
    """The fields of a batch that may replace the input of a locked tower."""

    def __init__(self, model: DualEncoder, no_texts: str = ""):
        self.model = model.clone(text=None) if no_texts else model
        self.no_texts = no_texts

    @property
    def frozen(self) -> tuple[str, ...]:
        """Paths of parameters that the optimizer leaves unchanged: those of what is locked."""
        towers = [part for part in TOWERS if getattr(self.model, part) is not None]
        locked = (path for path in self.model.locked if split_path(path)[0] in towers)
        return tuple(f"model/{path}" for path in locked)

    def init_by(
        self, method: str | None, rng: PRNGKeyArray, *inputs: Array
    ) -> tuple[Params, ModelState]:
        """Makes the parameters and statistics that a method of the model uses."""
        variables = dict(self.model.init(rng, *inputs, method=method))
        return {"model": variables.pop("params")}, variables

    def train(
        self,
        function: Callable[..., Any],
        params: Params,
        model_state: ModelState,
        batch: Batch,
        rng: PRNGKeyArray,
        *inputs: Any,
    ) -> tuple[Any, ModelState]:
        """Returns what a function of the model, a batch and further inputs does in training mode.

        Also returns the new statistics. What is drawn for each image alone is drawn by its key.
        """
        draws = {DRAWS: {"image": {KEYS: batch["key"]}}} if "key" in batch else {}
        outputs, new_state = self.model.apply(
            {"params": params["model"], **model_state, **draws},
            batch,
            *inputs,
            mutable=list(model_state),
            rngs={"dropout": rng},
            method=function,
        )
        # A tower without running statistics omits their collections from what it returns.
        return outputs, {**model_state, **new_state}

    def apply(self, method: str, params: Params, model_state: ModelState, *inputs: Array) -> Any:
        """Applies a method of the model in evaluation mode."""
        return self.model.apply({"params": params["model"], **model_state}, *inputs, method=method)

    def init(self, rng: PRNGKeyArray, batch: Batch) -> tuple[Params, ModelState]:
        """Makes fresh parameters and statistics of both towers."""
        return self.init_by(None, rng, batch["image"], *flatten_texts(batch))

    def encode(
        self, params: Params, model_state: ModelState, batch: Batch, rng: PRNGKeyArray
    ) -> tuple[Outputs, ModelState]:
        """Encodes a (micro-)batch in training mode; returns outputs, and the new statistics."""
        raise NotImplementedError

    def image_features(self, params: Params, model_state: ModelState, batch: Batch) -> Features:
        """Returns the pooled features of the image tower."""
        return self.apply("image_features", params, model_state, batch["image"])

    def text_features(self, params: Params, model_state: ModelState, batch: Batch) -> Features:
        """Returns the pooled features of the text tower."""
        texts = batch["text"], batch["text_mask"]
        return self.apply("text_features", params, model_state, *texts)

    def embed_image(self, params: Params, model_state: ModelState, batch: Batch) -> Embeddings:
        """Returns unit-length image embeddings."""
        return self.apply("encode_image", params, model_state, batch["image"])

    def embed_text(self, params: Params, model_state: ModelState, batch: Batch) -> Embeddings:
        """Returns unit-length text embeddings."""
        if self.no_texts:
            raise UserError(self.no_texts)
        texts = batch["text"], batch["text_mask"]
        return self.apply("encode_text", params, model_state, *texts)


class TwoTowers(Encoder):
    """Encodes images and their texts.

    A locked tower has no backward pass: nothing of it is kept for one, and its statistics do not
    change. It runs once per step, or at most twice with micro-batches, which are encoded twice. A
    batch with `image_embedding`, float [b f], needs no images, and one with `text_embedding`, float
    [b k f], no token ids: they hold the pooled features of locked towers.
    """

    takes_features = tuple(FEATURES)

    def encode(
        self, params: Params, model_state: ModelState, batch: Batch, rng: PRNGKeyArray
    ) -> tuple[Outputs, ModelState]:
        """Returns unit-length `zimg` [b d] and `ztxt` [b d], or [b k d] with k texts per image."""
        (zimg, ztxt), state = self.train(_embed_batch, params, model_state, batch, rng)
        return {"zimg": zimg, "ztxt": ztxt.reshape(*batch["text_mask"].shape[:-1], -1)}, state


class ImageTower(Encoder):
    """Encodes images alone, to the features that the tower pools."""

    takes_features = ("image_embedding",)

    def init(self, rng: PRNGKeyArray, batch: Batch) -> tuple[Params, ModelState]:
        """Makes fresh parameters and statistics of the image tower."""
        return self.init_by("image_features", rng, batch["image"])

    def encode(
        self, params: Params, model_state: ModelState, batch: Batch, rng: PRNGKeyArray
    ) -> tuple[Outputs, ModelState]:
        """Returns `features` [b f]."""
        if "image_embedding" in batch:
            return {"features": read_features(self.model, batch, "image_embedding")}, model_state
        features, state = self.train(pool_images, params, model_state, batch, rng)
        return {"features": features}, state

    def embed_image(self, params: Params, model_state: ModelState, batch: Batch) -> Features:
        """Returns the features at unit length."""
        return normalize(self.image_features(params, model_state, batch))


class ProjectedImageTower(Encoder):
    """Encodes images alone, to embeddings from the model's projection."""

    def init(self, rng: PRNGKeyArray, batch: Batch) -> tuple[Params, ModelState]:
        """Makes fresh parameters and statistics of the image tower and its projection."""
        return self.init_by("encode_image", rng, batch["image"])

    def encode(
        self, params: Params, model_state: ModelState, batch: Batch, rng: PRNGKeyArray
    ) -> tuple[Outputs, ModelState]:
        """Returns unit-length `zimg` [b d]."""
        zimg, state = self.train(_embed_images, params, model_state, batch, rng)
        return {"zimg": zimg}, state


def read_features(model: DualEncoder, batch: Batch, field: str) -> Float[Array, "n f"]:
    """Returns the pooled features of a locked tower that a batch holds, float32.

    If the tower is trained, they would not be its own, and are refused.
    """
    part = FEATURES[field]
    if part not in model.locked:
        raise UserError(
            f"{field} stands for the {part} tower, which is trained: lock it, "
            f"config.model.locked = ({part!r},), or leave config.data.precomputed.{field} out"
        )
    width = getattr(model, part).output_dim
    features = jnp.reshape(batch[field], (-1, batch[field].shape[-1]))
    if features.shape[-1] != width:
        raise UserError(
            f"{field} has {features.shape[-1]} numbers an example and the {part} tower gives "
            f"{width}: embed the data with the features of this tower"
        )
    return jax.lax.stop_gradient(features.astype(jnp.float32))


def pool_images(model: DualEncoder, batch: Batch) -> Features:
    """Returns the pooled features of a batch's images, in training mode."""
    return model.image_features(batch["image"], True)


def _embed_images(model: DualEncoder, batch: Batch) -> Embeddings:
    return model.encode_image(batch["image"], True)


def _embed_batch(
    model: DualEncoder, batch: Batch
) -> tuple[Float[Array, "b d"], Float[Array, "n d"]]:
    """Embeds images and texts, or the features that replace them, in training mode."""
    if "image_embedding" in batch:
        zimg = model.embed_features(read_features(model, batch, "image_embedding"), True)
    else:
        zimg = model.encode_image(batch["image"], True)
    if "text_embedding" in batch:
        return zimg, model.embed_text_features(read_features(model, batch, "text_embedding"), True)
    return zimg, model.encode_text(*flatten_texts(batch), True)


def flatten_texts(batch: Batch) -> tuple[Array, Array]:
    """Returns all texts of a batch as rows, and their masks."""
    length = batch["text"].shape[-1]
    if batch["text"].ndim > 2 and not batch["text"].shape[1]:
        raise ConfigError(
            "config.data.captions_per_image = 0 reads no texts, which this objective encodes; "
            "write --config.data.captions_per_image=1"
        )
    return jnp.reshape(batch["text"], (-1, length)), jnp.reshape(batch["text_mask"], (-1, length))


def real_texts(batch: Batch) -> Bool[Array, "b *k"]:
    """Returns which texts exist: those of real examples, and with tokens if there may be more."""
    if batch["text_mask"].ndim == 2:
        return batch["mask"]
    return batch["mask"][:, None] & batch["text_mask"].any(-1)
