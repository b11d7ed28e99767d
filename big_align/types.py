"""The contracts between the parts: a batch, an objective, an evaluator.

Dimension letters used in every signature:
  b  examples of the global batch     h w  image height and width
  l  tokens of a text                 d    width of an embedding
  c  classes or channels              n    examples of a data set
  p  clusters of an image             k    clusters in all, or texts of an image
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

Batch = Mapping[str, Array | np.ndarray]
"""Arrays with the global batch leading.

  image      uint8 or float [b h w 3], or [b v h w 3] with v views an image; uint8 is normalized on
             the device
  text       int32 [b l], or [b k l] with k texts an image; text_mask bool, True on real tokens, has
             its shape; a text without any real token does not exist
  label      int32 [b]; -1 for an image-text pair; a class has one number in all parts of the data
  mask       bool [b]; False on padding
  tags       int32 [b t], the tags that stand in the texts of an example, ascending; -1 for none
  true_tags  int32 [b t2], where they are known all tags of the image, those of `tags` among them
  clusters   int32 [b p], the clusters of an image, nearest first; -1 for none
  image_embedding  float [b f], where a locked image tower's features were computed beforehand; the
             image may then be left out
  text_embedding   float [b k f], likewise those of a locked text tower, of k >= 1 texts an image;
             `text_mask` still says which of them there are
"""

Params = Any
"""A pytree of float32 arrays that the optimizer updates."""

ModelState = Any
"""A pytree of arrays that the forward pass updates (running statistics of BatchNorm)."""

Outputs = Mapping[str, Array]
"""What `encode` returns: arrays with the batch leading."""

Metrics = dict[str, Array]
"""Named scalars."""


@runtime_checkable
class Objective(Protocol):
    """What is trained: verbs that the step composes, and the parameters they share.

    The step calls `draw` and `prepare` once, `encode` on the batch or on each of its micro-batches,
    and `loss` on the outputs of the whole batch, so that accumulation keeps every negative. All of
    them see what `augment` made of the batch.

    `frozen` names the paths of parameters that the objective leaves as they are, and `takes_views`
    says whether it can do with several views of an image. `table_sizes` has the rows of each table
    without padding.

    It may have `watched`: those of its metrics, each positive, by which one sees that it fails, and
    the side, "above" or "below", on which a value far outside of its running spread says so. The
    trainer then treats them as it does the loss.

    An objective over classes has `classify` besides: like `embed_image`, it returns the logits
    [b c] of the training classes. One that recognizes tags has `recognize`, which returns the
    logits [b c] of the tags of its list, `tags`.
    """

    frozen: tuple[str, ...]
    takes_views: bool
    table_sizes: Mapping[str, int]

    def check_precomputed(self, folders: Mapping[str, str], where: str) -> None:
        """Checks the folders of precomputed fields, by field, before training.

        Raises:
          ConfigError: one is missing or does not fit.
        """

    def describe_fields(self) -> Mapping[str, tuple[int, ...]]:
        """Returns the shapes of int32 fields that an example must have, beside the usual ones."""

    def scale(self, params: Params) -> Float[Array, ""] | None:
        """Returns what cosines are multiplied with; None where that is not learned."""

    def init(self, rng: PRNGKeyArray, batch: Batch) -> tuple[Params, ModelState]:
        """Makes fresh parameters and statistics from a batch of the right shapes.

        Leaves may be boxed with the logical names of their axes (`flax.linen.Partitioned`).
        """

    def augment(self, batch: Batch, rng: PRNGKeyArray, step: Int[Array, ""]) -> Batch:
        """Changes the whole global batch on the device, before it is split, as MixUp does.

        Args:
          batch: as the loader made it.
          rng: of the step.
          step: updates done so far; what depends on it goes into the batch as an array [b ...].
        """

    def init_tables(self, rng: PRNGKeyArray) -> Mapping[str, Array]:
        """Makes tables, of which a step changes a few rows; most objectives have none."""

    def draw(self, tables: Mapping[str, Any], batch: Batch, rng: PRNGKeyArray) -> Mapping[str, Any]:
        """Draws the rows of each table that a step works with; `loss` has them in its parameters.

        Args:
          tables: `row_tables.Table`s, by name.
          batch: what `augment` made.
          rng: of the step.

        Returns:
          `row_tables.Drawn`s, by name; `params["drawn"]` of `loss`.
        """

    def prepare(self, params: Params, batch: Batch, rng: PRNGKeyArray) -> Any:
        """Computes what every example shares in this step; differentiable; may return None."""

    def encode(
        self, params: Params, model_state: ModelState, batch: Batch, rng: PRNGKeyArray
    ) -> tuple[Outputs, ModelState]:
        """Encodes a (micro-)batch example by example, in training mode."""

    def loss(
        self, params: Params, outputs: Outputs, prepared: Any, batch: Batch
    ) -> tuple[Float[Array, ""], Metrics]:
        """Returns the loss of the whole batch and named scalars to log."""

    def project(self, params: Params) -> Params:
        """Moves parameters back into their bounds after an update."""

    def image_features(
        self, params: Params, model_state: ModelState, batch: Batch
    ) -> Float[Array, "b f"]:
        """Returns the pooled features of the image tower, in evaluation mode."""

    def embed_image(
        self, params: Params, model_state: ModelState, batch: Batch
    ) -> Float[Array, "b d"]:
        """Returns unit-length image embeddings, in evaluation mode."""

    def embed_text(
        self, params: Params, model_state: ModelState, batch: Batch
    ) -> Float[Array, "b d"]:
        """Returns unit-length text embeddings, in evaluation mode."""


@runtime_checkable
class Evaluator(Protocol):
    """Measures a model, given an `Embedder`, and returns named numbers.

    Its class may say what it needs, which is checked before training:
      `needs(settings)`  a classmethod: which verbs of the objective it calls, by the fields of its
                         config node;
      `check_objective(settings, objective)`  a classmethod: raises a ValueError if it cannot
                         measure this objective.
    Its instances may say, in `numbers`, the names of what they return.
    One that shows more than numbers has `measure(embedder)` besides, which returns a
    `exhibits.exhibit.Measured`: the same numbers, and what makes the pictures.
    """

    def __call__(self, embedder: Any) -> dict[str, float]: ...


@runtime_checkable
class SavedPart(Protocol):
    """What is saved in a checkpoint beside the training state, by every process for itself."""

    def write(self, folder: str) -> None:
        """Writes what it needs into an empty folder; returns when it is written."""

    def read(self, folder: str) -> None:
        """Takes up what was written into a folder."""


@runtime_checkable
class TrainingData(Protocol):
    """What makes this process's rows of every training batch.

    Attributes:
      batch_size: rows of the global batch.
      num_examples: of all processes; None where it is not known.
      broken: examples that this process knows to be broken.
      shards: what each shard is called and holds, which all processes must agree on.
      saved: what a checkpoint must hold for `iterate` to begin at its step, by name; nothing where
        the step says it all.
    """

    batch_size: int
    num_examples: int | None
    broken: int
    shards: Mapping[str, str]
    saved: Mapping[str, SavedPart]

    def epochs(self, step: int) -> dict[str, float]:
        """Returns how often the examples have been gone through before a step, by logged name."""

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """Makes the batch of a step."""

    def iterate(self, start_step: int) -> Iterator[dict[str, np.ndarray]]:
        """Yields the batches from a step on.

        A run that has left out data begins at a step that is later than its own: what it has
        `saved` may have to be read on.
        """

    def list_examples(self, step: int) -> list[str]:
        """Names the examples of the batch of a step, row by row; nothing where it is not known."""

    def close(self) -> None:
        """Ends what works ahead; it cannot be used again."""

    def __enter__(self) -> "TrainingData": ...

    def __exit__(self, *exception: object) -> None: ...
