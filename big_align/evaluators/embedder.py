"""Embeddings of many images or texts with a trained model, on any number of devices.

Evaluators, notebooks and offline jobs use `Embedder`: it pads, places and gathers, so that they see
NumPy arrays with one row per example.
"""

import zlib
from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int

from big_align.core.errors import UserError
from big_align.core.types import Batch, ModelState, Params
from big_align.parallel.batches import place_batch, process_rows
from big_align.parallel.devices import traced
from big_align.parallel.distributed import agreement
from big_align.parallel.meshes import replicated

REMEDIES = {
    "image_features": "evaluate its embeddings in place of the features: what='embedding'",
    "classify": (
        "evaluate it with zero_shot, or train an objective that has classes, such as "
        "cross_entropy, multitask or iclip"
    ),
    "recognize": "train the objective idea, which recognizes tags",
}
"""What to do if an objective lacks a method that not every objective has."""
MANY_BATCHES = 8
"""From this many batches on, texts are grouped by length and cut."""
MAX_LENGTHS, LENGTH_UNIT = 4, 8
"""Largest number of different lengths, and the number of which they are multiples."""


@runtime_checkable
class Verbs(Protocol):
    """What embeds: an objective, or a model alone; `REMEDIES` has methods that may be missing."""

    def scale(self, params: Params) -> Float[jax.Array, ""] | None:
        """Returns what cosines are multiplied by; None if there is nothing."""


class Embedder:
    """Embeds with the towers of an objective; compiles once per shape.

    What the objective lacks, such as classes, is a UserError when a method asks for it. The arrays
    that it returns are NumPy's, the same on every process.

    Args:
      objective: provides `embed_image` and `embed_text`, and possibly `image_features`, `classify`
        and `recognize`, as `big_align.Objective` describes them.
      mesh: the devices to use.
      batch_size: rows of a batch over all devices, a multiple of the number of devices.
    """

    def __init__(self, objective: Verbs, mesh: Mesh, batch_size: int):
        self.mesh = mesh
        self.batch_size = batch_size
        self.rows = process_rows(mesh, batch_size)
        self._objective = objective
        self._spans_processes = len({device.process_index for device in mesh.devices.flat}) > 1
        self._compiled: dict[tuple[str, ...], Callable] = {}
        self._variables: tuple[Params, ModelState] | None = None

    def use(self, params: Params, model_state: ModelState) -> "Embedder":
        """Sets the weights to embed with from now on.

        Args:
          params: the parameters of the objective.
          model_state: its statistics.

        Returns:
          This embedder.
        """
        self._variables = (params, model_state)
        return self

    @property
    def temperature(self) -> float | None:
        """What the objective divides cosines by; None if it has no scale."""
        scale = None if self._variables is None else self._objective.scale(self._variables[0])
        return None if scale is None else float(1 / scale)

    def compile_verbs(self, verbs: tuple[str, ...]) -> Callable:
        """Compiles methods of the objective together, when they are first called.

        The compiler computes what two of them have in common, the image tower, only once.

        Args:
          verbs: their names, such as ("embed_image", "image_features").

        Returns:
          A function from parameters, statistics and a placed batch to what each method returns, in
          float32 and gathered on every device, and the mask of the batch.
        """
        if verbs not in self._compiled:
            functions = [self._lookup(verb) for verb in verbs]

            # With the mask, every process learns which rows of the others are real.
            def run(params: Params, model_state: ModelState, batch: Batch) -> tuple:
                with traced.weights_on(self.mesh):
                    rows = [jnp.float32(apply(params, model_state, batch)) for apply in functions]
                    return *rows, batch["mask"]

            self._compiled[verbs] = jax.jit(run, out_shardings=replicated(self.mesh))
        return self._compiled[verbs]

    def _lookup(self, verb: str) -> Callable:
        apply = getattr(self._objective, verb, None)
        if apply is None:
            raise UserError(
                f"the objective {type(self._objective).__name__} has no {verb!r}; "
                f"{REMEDIES.get(verb, 'another objective is needed')}"
            )
        return apply

    def _apply(self, verbs: tuple[str, ...], batch: dict[str, np.ndarray]) -> list[np.ndarray]:
        if self._variables is None:
            raise RuntimeError("call use(params, model_state) before embedding")
        placed = place_batch(batch, self.mesh)
        return [np.asarray(x) for x in self.compile_verbs(verbs)(*self._variables, placed)]

    def _agree(self, topic: str, describe: Callable[[], dict[str, str]]) -> None:
        """Checks that all processes of the mesh embed the same; else they would wait or mix."""
        if self._spans_processes:
            agreement.check_inputs(topic, describe)

    def _apply_to_images(
        self, verbs: tuple[str, ...], batches: Iterable[dict[str, np.ndarray]], count: int
    ) -> tuple[np.ndarray, ...]:
        self._agree("images to embed", lambda: {"images to embed": str(count)})
        rows = [self._apply(verbs, dict(batch)) for batch in batches]
        return tuple(np.concatenate(x)[:count] for x in zip(*rows, strict=True))

    def embed_images(
        self, batches: Iterable[dict[str, np.ndarray]], count: int
    ) -> tuple[Float[np.ndarray, "n d"], Bool[np.ndarray, "n"]]:
        """Embeds the images of a loader.

        Args:
          batches: this process's rows of each batch of `batch_size`: `image` and `mask`.
          count: number of examples; the rest of the last batch is padding.

        Returns:
          Unit-length embeddings [n d] in the order of the loader, and which of them are real [n],
          not those of images that could not be decoded.
        """
        return self._apply_to_images(("embed_image",), batches, count)

    def image_features(
        self, batches: Iterable[dict[str, np.ndarray]], count: int
    ) -> tuple[Float[np.ndarray, "n f"], Bool[np.ndarray, "n"]]:
        """Like `embed_images`, but returns what the image tower pools [n f], not normalized."""
        return self._apply_to_images(("image_features",), batches, count)

    def embeddings_and_features(
        self, batches: Iterable[dict[str, np.ndarray]], count: int
    ) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, "n f"], Bool[np.ndarray, "n"]]:
        """Returns what `embed_images` and `image_features` return, in one pass over the images."""
        return self._apply_to_images(("embed_image", "image_features"), batches, count)

    def classify_images(
        self, batches: Iterable[dict[str, np.ndarray]], count: int
    ) -> tuple[Float[np.ndarray, "n c"], Bool[np.ndarray, "n"]]:
        """Like `embed_images`, but returns logits [n c] of the classes of the training."""
        return self._apply_to_images(("classify",), batches, count)

    def recognize(
        self, batches: Iterable[dict[str, np.ndarray]], count: int
    ) -> tuple[Float[np.ndarray, "n c"], Bool[np.ndarray, "n"]]:
        """Like `embed_images`, but returns logits [n c] of the tags that are recognized."""
        return self._apply_to_images(("recognize",), batches, count)

    def embed_texts(
        self, text: Int[np.ndarray, "n l"], text_mask: Bool[np.ndarray, "n l"]
    ) -> Float[np.ndarray, "n d"]:
        """Embeds tokenized texts that every process holds.

        Args:
          text: token ids.
          text_mask: True on real tokens.

        Returns:
          Unit-length embeddings [n d], in the order of the texts.
        """
        return self._apply_to_texts("embed_text", text, text_mask)

    def text_function(self) -> tuple[Callable[..., jax.Array], Params, ModelState]:
        """Returns a differentiable function that embeds texts, and the weights in use.

        Returns:
          A function of parameters, statistics and a placed batch; parameters; and statistics.
        """
        if self._variables is None:
            raise RuntimeError("call use(params, model_state) before embedding")
        apply = self._lookup("embed_text")

        def embed(params: Params, model_state: ModelState, batch: Batch) -> jax.Array:
            with traced.weights_on(self.mesh):
                return jnp.float32(apply(params, model_state, batch))

        return embed, *self._variables

    def text_features(
        self,
        text: Int[np.ndarray, "n l"],
        text_mask: Bool[np.ndarray, "n l"],
        many: int = MANY_BATCHES,
    ) -> Float[np.ndarray, "n f"]:
        """Like `embed_texts`, but returns what the text tower pools, before the projection.

        Args:
          text: token ids.
          text_mask: True on real tokens.
          many: from this many batches on, texts are grouped by length and cut; 1 for a caller that
            passes parts of many texts one after the other.

        Returns:
          Features [n f], in the order of the texts.
        """
        return self._apply_to_texts("text_features", text, text_mask, many)

    def _apply_to_texts(
        self,
        verb: str,
        text: Int[np.ndarray, "n l"],
        text_mask: Bool[np.ndarray, "n l"],
        many: int = MANY_BATCHES,
    ) -> Float[np.ndarray, "n d"]:
        self._agree("texts to embed", lambda: _describe_texts(text, text_mask))
        order, ends = _group_by_length(text_mask, self.batch_size, many)
        rows = []
        for start, end in zip(range(0, len(order), self.batch_size), ends, strict=True):
            # Padding repeats the last text: a row of padding alone might not be finite.
            picked = order[np.minimum(start + self.rows, len(order) - 1)]
            mask = np.ones(len(picked), bool)
            batch = {"text": text[picked, :end], "text_mask": text_mask[picked, :end]}
            rows.append(self._apply((verb,), batch | {"mask": mask})[0])
        values = np.concatenate(rows)[: len(order)]
        embeddings = np.empty_like(values)
        embeddings[order] = values
        return embeddings


def _describe_texts(
    text: Int[np.ndarray, "n l"], text_mask: Bool[np.ndarray, "n l"]
) -> dict[str, str]:
    digest = zlib.crc32(np.ascontiguousarray(np.where(text_mask, text, -1)))
    return {"texts to embed": f"{len(text)} with tokens of CRC {digest:08x}"}


def _group_by_length(
    text_mask: Bool[np.ndarray, "n l"], batch_size: int, many: int
) -> tuple[Int[np.ndarray, "n"], list[int]]:
    """Puts texts of similar length into one batch and cuts it: padding makes no difference.

    The texts of a few batches keep their order and length, since every length is compiled
    separately. Returns the order of the texts, and the length of each batch.
    """
    count, whole = text_mask.shape
    starts = range(0, count, batch_size)
    if len(starts) < many:
        return np.arange(count), [whole] * len(starts)
    lengths = np.where(text_mask, np.arange(1, whole + 1), 1).max(axis=1)
    order = np.argsort(lengths, kind="stable")
    unit = LENGTH_UNIT * -(-whole // (MAX_LENGTHS * LENGTH_UNIT))
    longest = [int(lengths[order[start : start + batch_size][-1]]) for start in starts]
    return order, [min(whole, unit * -(-length // unit)) for length in longest]
