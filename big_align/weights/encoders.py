"""How a model embeds images and texts, whatever kind of model it is."""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Array, Bool, Float, Int, UInt8

from big_align.models.dual_encoder import IMAGENET_MEAN, IMAGENET_STD, normalize, normalize_image
from big_align.weights.formats.pretrained import Pretrained

Variables = Mapping[str, Any]


class Encoders:
    """The functions of a model: of its variables, and of images or texts.

    The pooled features of a tower by itself are its embedding.

    Args:
      pretrained: a dual encoder or a tower.
    """

    def __init__(self, pretrained: Pretrained):
        self._model, self._dual = pretrained.model, pretrained.kind == "dual"
        seen = pretrained.preprocessing
        self._colors = (seen.mean, seen.std) if seen else (IMAGENET_MEAN, IMAGENET_STD)

    def pool_image(
        self, variables: Variables, image: UInt8[Array, "b h w 3"]
    ) -> Float[Array, "b f"]:
        """Returns what the image tower pools, before any projection."""
        if self._dual:
            return self._model.apply(variables, image, method="image_features")
        return self._model.apply(variables, normalize_image(image, *self._colors))[0]

    def embed_image(
        self, variables: Variables, image: UInt8[Array, "b h w 3"]
    ) -> Float[Array, "b d"]:
        """Returns embeddings of unit length."""
        if self._dual:
            return self._model.apply(variables, image, method="encode_image")
        return normalize(self.pool_image(variables, image))

    def embed_text(
        self, variables: Variables, text: Int[Array, "b l"], text_mask: Bool[Array, "b l"]
    ) -> Float[Array, "b d"]:
        """Returns embeddings of unit length of token ids, of which the mask tells the real ones."""
        if self._dual:
            return self._model.apply(variables, text, text_mask, method="encode_text")
        return normalize(self._model.apply(variables, text, text_mask)[0])
