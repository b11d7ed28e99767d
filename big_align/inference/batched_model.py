"""A model on all devices of this process, which embeds batches of few sizes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt8

from big_align.errors import UserError
from big_align.evaluators.embedder import Embedder
from big_align.interop.encoders import make_image_encoder, make_image_pooler, make_text_encoder
from big_align.interop.formats.pretrained import Pretrained
from big_align.parallel.meshes import make_mesh, replicated
from big_align.types import Batch, ModelState, Params

DEVICE_ROWS = 64  # of a batch, on each device


class ModelVerbs:
    """A model without anything that trains it, in the form that `Embedder` needs.

    Args:
      pretrained: the model; its parameters are `params`, its other variables `model_state`.
    """

    def __init__(self, pretrained: Pretrained):
        self._encode_image = make_image_encoder(pretrained)
        self._encode_text = make_text_encoder(pretrained)
        self._pool_image = make_image_pooler(pretrained)
        self._temperature = pretrained.temperature

    def scale(self, params: Params) -> Float[Array, ""] | None:
        """Returns what cosines are multiplied by; None if the model does not say."""
        return None if self._temperature is None else jnp.float32(1 / self._temperature)

    def image_features(
        self, params: Params, model_state: ModelState, batch: Batch
    ) -> Float[Array, "b f"]:
        """Returns what the image tower pools."""
        return self._pool_image({"params": params, **model_state}, batch["image"])

    def embed_image(
        self, params: Params, model_state: ModelState, batch: Batch
    ) -> Float[Array, "b d"]:
        """Returns unit-length image embeddings."""
        return self._encode_image({"params": params, **model_state}, batch["image"])

    def embed_text(
        self, params: Params, model_state: ModelState, batch: Batch
    ) -> Float[Array, "b d"]:
        """Returns unit-length text embeddings."""
        variables = {"params": params, **model_state}
        return self._encode_text(variables, batch["text"], batch["text_mask"])


class BatchedModel:
    """Embeds batches, each padded to a power of two per device, so that few programs are compiled.

    It has a mesh of its own, of all devices of the process, also inside of a caller's
    `jax.set_mesh`.

    Args:
      pretrained: the model.
      batch_size: the most rows of a batch, over all devices; None for 64 per device.

    Raises:
      UserError: `batch_size` is below 1.
    """

    def __init__(self, pretrained: Pretrained, batch_size: int | None):
        if batch_size is not None and batch_size < 1:
            raise UserError(f"batch_size is {batch_size}; it must be at least 1")
        self._verbs = ModelVerbs(pretrained)
        self._mesh = make_mesh(devices=jax.local_devices())
        self._most = max(1, (batch_size or DEVICE_ROWS * self._mesh.size) // self._mesh.size)
        variables = dict(pretrained.variables)
        weights = variables.pop("params"), variables
        self._weights = jax.device_put(weights, replicated(self._mesh))
        self._embedders: dict[int, Embedder] = {}

    def choose_rows(self, count: int) -> int:
        """Returns the rows of a batch for `count` items, or the most that a batch may have."""
        rows = min(-(-count // self._mesh.size), 1 << self._most.bit_length() - 1)
        return self._mesh.size << (rows - 1).bit_length()

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raises a UserError if the model cannot take images (height, width, 3)."""
        batch = {"image": jax.ShapeDtypeStruct((1, *shape), np.uint8)}
        try:
            with jax.set_mesh(self._mesh):
                jax.eval_shape(self._verbs.embed_image, *self._weights, batch)
        except Exception as error:  # the layers of towers raise all kinds of errors
            reason = str(error).splitlines()[0]
            raise UserError(f"the model cannot take images {list(shape)}: {reason}") from error

    def embed_images(
        self, image: UInt8[np.ndarray, "b h w 3"], mask: Bool[np.ndarray, "b"]
    ) -> Float[np.ndarray, "b d"]:
        """Embeds images of a batch; rows whose mask is False are NaN."""
        return self._run(Embedder.embed_images, image, mask)

    def pool_images(
        self, image: UInt8[np.ndarray, "b h w 3"], mask: Bool[np.ndarray, "b"]
    ) -> Float[np.ndarray, "b f"]:
        """Returns what the image tower pools; rows whose mask is False are NaN."""
        return self._run(Embedder.image_features, image, mask)

    def _run(
        self, apply: Any, image: UInt8[np.ndarray, "b h w 3"], mask: Bool[np.ndarray, "b"]
    ) -> Float[np.ndarray, "b d"]:
        count = len(image)
        batch = {"image": self._pad(image), "mask": self._pad(mask)}
        with jax.set_mesh(self._mesh):
            values, _ = apply(self._make_embedder(count), [batch], count)
        return np.where(mask[:, None], values, np.float32(np.nan))

    def embed_texts(
        self, text: Int[np.ndarray, "b l"], text_mask: Bool[np.ndarray, "b l"]
    ) -> Float[np.ndarray, "b d"]:
        """Embeds the token ids of a batch."""
        with jax.set_mesh(self._mesh):
            return self._make_embedder(len(text)).embed_texts(text, text_mask)

    def _pad(self, rows: np.ndarray) -> np.ndarray:
        missing = self.choose_rows(len(rows)) - len(rows)
        return np.pad(rows, [(0, missing), *[(0, 0)] * (rows.ndim - 1)]) if missing else rows

    def _make_embedder(self, count: int) -> Embedder:
        rows = self.choose_rows(count)
        if rows not in self._embedders:
            self._embedders[rows] = Embedder(self._verbs, self._mesh, rows).use(*self._weights)
        return self._embedders[rows]
