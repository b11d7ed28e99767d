"""The texts of all classes, encoded in every step: iCLIP (Wei et al. 2023), §3.2.

The classes are split over the devices, as in the paper. If a device's part is more than one chunk,
it encodes chunk by chunk, with whole weights, and again in the backward pass: besides the
embeddings it needs the memory of one chunk, however many classes there are. If not, the texts are
encoded as those of a batch are, and every layer gathers the pieces of its weights.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int32, PRNGKeyArray

from big_align.core.errors import check_at_least
from big_align.data.labels.classes import ClassList
from big_align.data.labels.prompts import fill_class_templates
from big_align.data.text.tokenizers import Tokenizer
from big_align.parallel.devices.rematerialization import remat_body
from big_align.parallel.meshes import batch_sharding
from big_align.parallel.shards import map_rows

Ids = tuple[Int32[np.ndarray, "n l"], Bool[np.ndarray, "n l"]]


def tokenize_classes(classes: ClassList, template: str, tokenizer: Tokenizer) -> Ids:
    """Returns the ids of all class texts and their mask, cut to the longest text."""
    texts = fill_class_templates(classes, (template,), synonyms=False)
    text, text_mask = tokenizer([only for (only,) in texts])
    longest = np.flatnonzero(text_mask.any(axis=0)).max(initial=0) + 1
    return text[:, :longest], text_mask[:, :longest]


class ClassTexts:
    """Class texts, arranged in equal chunks over the devices.

    The number of classes need not be divisible: the last class is repeated as often as needed, and
    `mask` says which rows are classes. A device encodes at most `chunk` texts at a time.
    """

    def __init__(
        self,
        text: Int32[np.ndarray, "n l"],
        text_mask: Bool[np.ndarray, "n l"],
        mesh: Mesh,
        chunk: int,
    ):
        check_at_least(1, chunk=chunk)
        if not len(text):
            raise ValueError("there is no class to make a text of")
        self.mesh = mesh
        self.count = len(text)
        self.chunks = math.ceil(self.count / (mesh.size * chunk))
        padding = (0, -self.count % (mesh.size * self.chunks)), (0, 0)
        # Copies of a real text, so that no tower has to deal with a text without tokens.
        self.text = np.pad(text, padding, mode="edge")
        self.text_mask = np.pad(text_mask, padding, mode="edge")
        self.mask = np.arange(len(self.text)) < self.count

    def encode(
        self,
        encode_text: Callable[..., Float[Array, "n d"]],
        params: Any,
        rng: PRNGKeyArray | None = None,
    ) -> Float[Array, "p d"]:
        """Embeds the texts of all classes; differentiable with respect to the parameters.

        `encode_text` is a function of parameters, `text` [n l], `text_mask` [n l] and a key, one
        for each chunk; None if `rng` is. There is one embedding per row of `mask`, split over the
        devices.
        """
        if self.chunks == 1:
            rows = jax.lax.with_sharding_constraint(
                (jnp.asarray(self.text), jnp.asarray(self.text_mask)), batch_sharding(self.mesh)
            )
            return encode_text(params, *rows, rng)
        keys = None if rng is None else jax.random.split(rng, self.mesh.size * self.chunks)

        def encode_rows(params: Any, rows: Any) -> Float[Array, "m d"]:
            text, text_mask, keys = rows
            cut = lambda x: x.reshape(self.chunks, -1, x.shape[-1])  # noqa: E731
            encode_chunk = remat_body(lambda chunk: encode_text(params, *chunk))
            ztxt = jax.lax.map(encode_chunk, (cut(text), cut(text_mask), keys))
            return ztxt.reshape(-1, ztxt.shape[-1])

        return map_rows(encode_rows, params, (self.text, self.text_mask, keys), self.mesh)
