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
from big_align.weights.encoders import ModelVerbs
from big_align.weights.formats import architecture, native_format
from big_align.weights.formats.pretrained import Pretrained

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
SUFFIX = ".jax_export"


def write(pretrained: Pretrained) -> dict[str, Any]:
    """Makes the files of a folder, by name."""
    files, verbs = native_format.write(pretrained), ModelVerbs(pretrained)
    if pretrained.embeds("image"):
        shape = *architecture.find_edges(pretrained.image_size), 3
        if seen := pretrained.preprocessing:
            shape = shape_of_image(seen.transform, "transform")
        files |= _export("encode_image", verbs.embed_image, pretrained, image=(np.uint8, shape))
    if pretrained.embeds("text"):
        length = (pretrained.tokenizer or {}).get("length")
        row = (length or pretrained.tower("text").model.max_length,)  # with padding
        texts = {"text": (np.int32, row), "text_mask": (np.bool_, row)}
        files |= _export("encode_text", verbs.embed_text, pretrained, **texts)
    return files


def _export(
    name: str,
    encode: Callable[..., jax.Array],
    pretrained: Pretrained,
    **inputs: tuple[type, tuple[int, ...]],
) -> dict[str, bytes]:
    """Returns the program of a verb, by the name of its file.

    `inputs` are type and shape of a row of each field of the batch.
    """

    @jax.jit
    def run(weights: dict[str, jax.Array], *batch: jax.Array) -> jax.Array:
        variables = architecture.unflatten(weights)
        return encode(variables.pop("params"), variables, dict(zip(inputs, batch, strict=True)))

    weights = {k: jax.ShapeDtypeStruct(x.shape, x.dtype) for k, x in pretrained.flat.items()}
    (rows,) = jax.export.symbolic_shape("b")
    batch = [jax.ShapeDtypeStruct((rows, *shape), kind) for kind, shape in inputs.values()]
    run.__name__ = name  # in the program, and so in profiles
    program = jax.export.export(run, platforms=PLATFORMS)(weights, *batch)
    return {f"{name}{SUFFIX}": bytes(program.serialize())}
