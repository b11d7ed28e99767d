"""A model on all devices of this process, which embeds batches of few sizes."""

from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from big_align.core.errors import UserError, check_at_least
from big_align.evaluators.embedder import Embedder
from big_align.parallel.meshes import make_mesh, replicated
from big_align.weights.encoders import ModelVerbs
from big_align.weights.formats.pretrained import Pretrained

DEVICE_ROWS = 64  # of a batch, on each device


class BatchedModel:
    """Embeds batches, each padded to a power of two per device, so that few programs are compiled.

    It has a mesh of its own, of all devices of the process, also inside of a caller's
    `jax.set_mesh`. A batch has at most `batch_size` rows over all devices; None for 64 per device.
    """

    def __init__(self, pretrained: Pretrained, batch_size: int | None):
        check_at_least(1, batch_size=batch_size)
        self._verbs = ModelVerbs(pretrained)
        self._mesh = make_mesh(1, jax.local_devices())
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

    def apply(
        self,
        method: Callable[..., tuple],
        image: UInt8[np.ndarray, "b h w 3"],
        mask: Bool[np.ndarray, "b"],
    ) -> Float[np.ndarray, "b d"]:
        """Applies a method of `Embedder` to a batch; rows whose mask is False are NaN."""
        count = len(image)
        batch = {"image": self._pad(image), "mask": self._pad(mask)}
        with jax.set_mesh(self._mesh):
            values, _ = method(self._make_embedder(count), [batch], count)
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
