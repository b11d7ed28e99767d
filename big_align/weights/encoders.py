"""The functions by which a model embeds images and texts, whatever kind of model it is."""

from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import Array, Bool, Float, Int, UInt8

from big_align.models.dual_encoder import IMAGENET_MEAN, IMAGENET_STD, normalize, normalize_image
from big_align.weights.formats.pretrained import Pretrained

Variables = Mapping[str, Any]


def make_image_encoder(
    pretrained: Pretrained,
) -> Callable[[Variables, UInt8[Array, "b h w 3"]], Float[Array, "b d"]]:
    """Makes the function that embeds images.

    The pooled features of a tower by itself are its embedding.

    Args:
      pretrained: a dual encoder, or an image tower.

    Returns:
      A function of the model's variables and of images, to embeddings of unit length.
    """
    if pretrained.kind == "dual":
        model = pretrained.model
        return lambda variables, image: model.apply(variables, image, method="encode_image")
    pool = make_image_pooler(pretrained)
    return lambda variables, image: normalize(pool(variables, image))


def make_image_pooler(
    pretrained: Pretrained,
) -> Callable[[Variables, UInt8[Array, "b h w 3"]], Float[Array, "b f"]]:
    """Makes the function from images to what the image tower pools, before any projection.

    Args:
      pretrained: a dual encoder, or an image tower.

    Returns:
      A function of the model's variables and of images.
    """
    model, seen = pretrained.model, pretrained.preprocessing
    if pretrained.kind == "dual":
        return lambda variables, image: model.apply(variables, image, method="image_features")
    colors = (seen.mean, seen.std) if seen else (IMAGENET_MEAN, IMAGENET_STD)
    return lambda variables, image: model.apply(variables, normalize_image(image, *colors))[0]


def make_text_encoder(
    pretrained: Pretrained,
) -> Callable[[Variables, Int[Array, "b l"], Bool[Array, "b l"]], Float[Array, "b d"]]:
    """Makes the function that embeds texts.

    The pooled features of a tower by itself are its embedding.

    Args:
      pretrained: a dual encoder, or a text tower.

    Returns:
      A function of the model's variables, of token ids and of their mask, to embeddings of unit
      length.
    """
    model = pretrained.model

    def encode(
        variables: Variables, text: Int[Array, "b l"], text_mask: Bool[Array, "b l"]
    ) -> Float[Array, "b d"]:
        if pretrained.kind == "dual":
            return model.apply(variables, text, text_mask, method="encode_text")
        features, _ = model.apply(variables, text, text_mask)
        return normalize(features)

    return encode
