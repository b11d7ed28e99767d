"""How a model embeds images and texts, whatever kind of model it is."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from big_align.core.types import Batch, ModelState, Params
from big_align.models.dual_encoder import IMAGENET_MEAN, IMAGENET_STD, normalize, normalize_image
from big_align.weights.formats.pretrained import Pretrained


class ModelVerbs:
    """A dual encoder or a tower without what trains it, in the form that `Embedder` needs.

    Its parameters are `params`, its other variables `model_state`. The pooled features of a tower
    by itself are its embedding.
    """

    def __init__(self, pretrained: Pretrained):
        self._model, self._dual = pretrained.model, pretrained.kind == "dual"
        self._temperature, seen = pretrained.temperature, pretrained.preprocessing
        self._colors = (seen.mean, seen.std) if seen else (IMAGENET_MEAN, IMAGENET_STD)

    def scale(self, params: Params) -> Float[Array, ""] | None:
        """Returns what cosines are multiplied by; None if the model does not say."""
        return None if self._temperature is None else jnp.float32(1 / self._temperature)

    def image_features(
        self, params: Params, model_state: ModelState, batch: Batch
    ) -> Float[Array, "b f"]:
        """Returns what the image tower pools, before any projection."""
        variables, image = {"params": params, **model_state}, batch["image"]
        if self._dual:
            return self._model.apply(variables, image, method="image_features")
        return self._model.apply(variables, normalize_image(image, *self._colors))[0]

    def embed_image(
        self, params: Params, model_state: ModelState, batch: Batch
    ) -> Float[Array, "b d"]:
        """Returns embeddings of unit length."""
        if not self._dual:
            return normalize(self.image_features(params, model_state, batch))
        variables = {"params": params, **model_state}
        return self._model.apply(variables, batch["image"], method="encode_image")

    def embed_text(
        self, params: Params, model_state: ModelState, batch: Batch
    ) -> Float[Array, "b d"]:
        """Returns embeddings of unit length of token ids, of which the mask tells the real ones."""
        variables, text = {"params": params, **model_state}, (batch["text"], batch["text_mask"])
        if self._dual:
            return self._model.apply(variables, *text, method="encode_text")
        return normalize(self._model.apply(variables, *text)[0])
