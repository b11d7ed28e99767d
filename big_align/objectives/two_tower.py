"""What objectives over an image tower and a text tower share: parameters, encoding, embedding."""

from collections.abc import Mapping
from typing import Any

import jax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from big_align.models.dual_encoder import DualEncoder
from big_align.types import Batch, ModelState, Outputs, Params


class TwoTower:
    """Encodes images and texts by a dual encoder; a base for objectives that add a loss.

    The parameters are a dictionary: `model` holds the dual encoder's, objectives add their own
    beside it.

    Args:
      model: the dual encoder.
    """

    def __init__(self, model: DualEncoder):
        self.model = model

    def init(self, rng: PRNGKeyArray, batch: Batch) -> tuple[Params, ModelState]:
        """Makes fresh parameters and BatchNorm statistics."""
        variables = dict(self.model.init(rng, batch["image"], *flatten_texts(batch)))
        return {"model": variables.pop("params")}, variables

    def augment(self, batch: Batch, rng: PRNGKeyArray, step: Int[Array, ""]) -> Batch:
        """Leaves the batch as the loader made it."""
        return batch

    def init_tables(self, rng: PRNGKeyArray) -> Mapping[str, Array]:
        """There are no tables beside the parameters."""
        return {}

    def draw(self, tables: Mapping[str, Any], batch: Batch, rng: PRNGKeyArray) -> dict[str, Any]:
        """Without tables there is nothing to draw."""
        return {}

    def prepare(self, params: Params, batch: Batch, rng: PRNGKeyArray) -> Any:
        """Nothing is shared between the examples."""
        return None

    def encode(
        self, params: Params, model_state: ModelState, batch: Batch, rng: PRNGKeyArray
    ) -> tuple[Outputs, ModelState]:
        """Returns `zimg` [b d] and `ztxt` [b d], or [b k d] with k texts an image; unit length."""
        (zimg, ztxt), new_state = self.model.apply(
            {"params": params["model"], **model_state},
            batch["image"],
            *flatten_texts(batch),
            train=True,
            mutable=list(model_state),
            rngs={"dropout": rng},
        )
        # A tower without running statistics leaves its collections out of what it returns.
        ztxt = ztxt.reshape(*batch["text"].shape[:-1], -1)
        return {"zimg": zimg, "ztxt": ztxt}, {**model_state, **new_state}

    def project(self, params: Params) -> Params:
        """Parameters without bounds stay as they are."""
        return params

    def image_features(
        self, params: Params, model_state: ModelState, batch: Batch
    ) -> Float[Array, "b f"]:
        """Returns the pooled features of the image tower, in evaluation mode."""
        variables = {"params": params["model"], **model_state}
        return self.model.apply(variables, batch["image"], method="image_features")

    def embed_image(
        self, params: Params, model_state: ModelState, batch: Batch
    ) -> Float[Array, "b d"]:
        """Returns unit-length image embeddings, in evaluation mode."""
        variables = {"params": params["model"], **model_state}
        return self.model.apply(variables, batch["image"], method="encode_image")

    def embed_text(
        self, params: Params, model_state: ModelState, batch: Batch
    ) -> Float[Array, "b d"]:
        """Returns unit-length text embeddings, in evaluation mode."""
        variables = {"params": params["model"], **model_state}
        texts = batch["text"], batch["text_mask"]
        return self.model.apply(variables, *texts, method="encode_text")


def flatten_texts(batch: Batch) -> tuple[Array, Array]:
    """Returns all texts of a batch, one below the other, and their masks."""
    length = batch["text"].shape[-1]
    return tuple(jax.numpy.reshape(batch[k], (-1, length)) for k in ("text", "text_mask"))


def real_texts(batch: Batch) -> Bool[Array, "b *k"]:
    """Tells which texts there are: of real examples, and with tokens where there may be several."""
    if batch["text_mask"].ndim == 2:
        return batch["mask"]
    return batch["mask"][:, None] & batch["text_mask"].any(-1)


def replace_leaf(params: Params, name: str, value: Array) -> Params:
    """Returns the parameters with one top-level entry replaced."""
    return {**params, name: jax.numpy.asarray(value, params[name].dtype)}
