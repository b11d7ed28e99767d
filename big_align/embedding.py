"""Embeddings of many images or texts with a trained model, on any number of devices.

Evaluators, notebooks and offline jobs go through `Embedder`: it pads, places and gathers, so that
they see NumPy arrays with one row per example.
"""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int

from big_align import sharding
from big_align.types import ModelState, Objective, Params


class Embedder:
    """Embeds with the towers of an objective; compiles once per shape.

    Args:
      objective: gives `embed_image` and `embed_text`.
      mesh: the devices to use.
      batch_size: rows of a batch over all devices, a multiple of their number.
    """

    def __init__(self, objective: Objective, mesh: Mesh, batch_size: int):
        self.mesh = mesh
        self.batch_size = batch_size
        self.rows = sharding.process_rows(mesh, batch_size)

        def compile_lazily(embed):
            # The mask goes along, so that every process learns which rows of the others are real.
            return jax.jit(
                lambda params, model_state, batch: (
                    jnp.float32(embed(params, model_state, batch)),
                    batch["mask"],
                ),
                out_shardings=sharding.replicated(mesh),
            )

        self._image = compile_lazily(objective.embed_image)
        self._text = compile_lazily(objective.embed_text)
        self._variables: tuple[Params, ModelState] | None = None

    def use(self, params: Params, model_state: ModelState) -> "Embedder":
        """Takes the weights to embed with from now on."""
        self._variables = (params, model_state)
        return self

    def _embed(
        self, function, batch: dict[str, np.ndarray]
    ) -> tuple[Float[np.ndarray, "b d"], Bool[np.ndarray, "b"]]:
        if self._variables is None:
            raise RuntimeError("call use(params, model_state) before embedding")
        embeddings, mask = function(*self._variables, sharding.place_batch(batch, self.mesh))
        return np.asarray(embeddings), np.asarray(mask)

    def embed_images(
        self, batches: Iterable[dict[str, np.ndarray]], count: int
    ) -> tuple[Float[np.ndarray, "n d"], Bool[np.ndarray, "n"]]:
        """Embeds the images of a loader.

        Args:
          batches: this process's rows of each batch of `batch_size`: `image` and `mask`.
          count: how many examples there are; the rest of the last batch is padding.

        Returns:
          Unit-length embeddings in the order of the loader, and which of them are real (an image
          that could not be decoded is not), on every process.
        """
        rows = [self._embed(self._image, dict(batch)) for batch in batches]
        zimg, mask = (np.concatenate(x)[:count] for x in zip(*rows, strict=True))
        return zimg, mask

    def embed_texts(
        self, text: Int[np.ndarray, "n l"], text_mask: Bool[np.ndarray, "n l"]
    ) -> Float[np.ndarray, "n d"]:
        """Embeds tokenised texts that every process holds.

        Args:
          text: token ids.
          text_mask: True on real tokens.

        Returns:
          Unit-length embeddings, on every process.
        """
        count, low, high = len(text), *self.rows
        rows = []
        for start in range(0, count, self.batch_size):
            # Padding repeats the last text: a row of nothing but padding could be not finite.
            picked = np.minimum(np.arange(start + low, start + high), count - 1)
            mask = np.ones(len(picked), bool)
            batch = {"text": text[picked], "text_mask": text_mask[picked], "mask": mask}
            rows.append(self._embed(self._text, batch)[0])
        return np.concatenate(rows)[:count]
