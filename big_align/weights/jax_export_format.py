"""Folders whose programs embed without big_align: JAX alone runs them, on any kind of device.

They are folders of ours with two files more, `encode_image.jax_export` and
`encode_text.jax_export`, of those that the model can embed. A program takes the arrays of
`model.safetensors` by name, then a batch of any size.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from big_align.config.components.transforms import shape_of_image
from big_align.weights.encoders import Encoders
from big_align.weights.formats import architecture, native_format
from big_align.weights.formats.pretrained import Pretrained

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
SUFFIX = ".jax_export"


def write(pretrained: Pretrained) -> dict[str, Any]:
    """Makes the files of a folder, by name.

    Raises:
      UserError: the file of the tokenizer's vocabulary is missing.
    """
    files = native_format.write(pretrained)
    encoders = Encoders(pretrained)
    if pretrained.embeds("image"):
        image = np.uint8, _shape_images(pretrained)
        files |= _export("encode_image", encoders.embed_image, pretrained, image)
    if pretrained.embeds("text"):
        length = (_measure_texts(pretrained),)
        texts = (np.int32, length), (np.bool_, length)
        files |= _export("encode_text", encoders.embed_text, pretrained, *texts)
    return files


def _export(
    name: str,
    encode: Callable[..., jax.Array],
    pretrained: Pretrained,
    *inputs: tuple[type, tuple[int, ...]],
) -> dict[str, bytes]:
    """Returns the program of a function, by the name of its file.

    Args:
      name: of the program.
      encode: takes the model's variables and the inputs.
      pretrained: the model.
      *inputs: type and shape of a row of each.
    """

    @jax.jit
    def run(weights: dict[str, jax.Array], *batch: jax.Array) -> jax.Array:
        return encode(architecture.unflatten(weights), *batch)

    weights = {k: jax.ShapeDtypeStruct(x.shape, x.dtype) for k, x in pretrained.flat.items()}
    (rows,) = jax.export.symbolic_shape("b")
    batch = [jax.ShapeDtypeStruct((rows, *shape), kind) for kind, shape in inputs]
    run.__name__ = name  # in the program, and so in profiles
    program = jax.export.export(run, platforms=PLATFORMS)(weights, *batch)
    return {f"{name}{SUFFIX}": bytes(program.serialize())}


def _shape_images(pretrained: Pretrained) -> tuple[int, ...]:
    """Returns height, width and channels of the images that the model is given."""
    if seen := pretrained.preprocessing:
        return shape_of_image(seen.transform, "transform")
    return *architecture.find_edges(pretrained.image_size), 3


def _measure_texts(pretrained: Pretrained) -> int:
    """Returns the number of tokens of a text, with padding."""
    known = (pretrained.tokenizer or {}).get("length")
    return known or pretrained.tower("text").model.max_length
