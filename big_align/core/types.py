"""The contracts between the parts: a batch, an objective, training data.

Dimension letters, wherever a docstring does not say what else they are:
  b  examples of the global batch     h w  image height and width
  l  tokens of a text                 d    width of an embedding
  c  classes, channels, or texts      n    examples of a data set, or rows
  p  clusters of an image             k    clusters in all, or texts of an image
  f  width of features                q    queries
  t  tags                             v    views of an image
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

Batch = Mapping[str, Any]
"""Arrays with the global batch leading: those of NumPy become those of JAX when they are placed.

- `image`: uint8 or float [b h w 3], or [b v h w 3] with v views per image; uint8 is normalized on
  the device
- `text`: int32 [b l], or [b k l] with k texts per image
- `text_mask`: bool of the same shape, True on real tokens; a text without any does not exist
- `label`: int32 [b]; -1 for an image-text pair; a class has one number in all parts of the data
- `mask`: bool [b]; False on padding
- `tags`: int32 [b t], the tags that occur in the texts of an example, ascending; -1 for none
- `true_tags`: int32 [b t2], all tags of the image where they are known, including those of `tags`
- `clusters`: int32 [b p], the clusters of an image, nearest first; -1 for none
- `key`: uint32 [b 2], made by the step: a random key for each example, however a batch is split
- `image_embedding`: float [b f], the features of a locked image tower, where they were computed
  beforehand; the image may then be left out
- `text_embedding`: float [b k f], likewise those of a locked text tower, of k >= 1 texts per image;
  `text_mask` still says which of them exist
"""

Params = Any
"""A pytree of float32 arrays that the optimizer updates."""

ModelState = Any
"""A pytree of arrays that the forward pass updates (running statistics of BatchNorm)."""

Outputs = Mapping[str, Array]
"""What `encode` returns: arrays with the batch leading."""

Metrics = dict[str, Array]
"""Named scalars."""

OF_EVERY_RUN = (
    *("step", "loss", "gradient_norm", "parameter_norm", "update_norm", "learning_rate", "epoch"),
    *("images_per_second", "step_seconds", "data_wait_seconds", "device_flops_per_second"),
    *("model_flop_utilization", "goodput"),
)
"""What every run logs, so that no metric of an objective can have such a name."""

FOLDERS_OF_EVERY_RUN = ("epoch/", "time/")
"""How others begin that a run logs, of parts of the data and phases of the time."""

MeasuredLoss = tuple[Float[Array, ""], Metrics]
"""A loss, and what is logged with it."""

Embeddings = Float[Array, "b d"]
"""Of unit length."""

Features = Float[Array, "b f"]
"""What a tower pools, not normalized."""

Logits = Float[Array, "b c"]
"""Those of classes or tags."""


@runtime_checkable
class Objective(Protocol):
    """What is trained: the methods that a step composes, and the parameters they share.

    The step calls `draw` and `prepare` once, `encode` on the batch or on each of its micro-batches,
    and `loss` on the outputs of the whole batch, so that accumulation keeps every negative. All of
    them see what `augment` made of the batch. A class need not derive from this one; most methods
    are in `big_align.objectives.parts.composed.ComposedObjective`.

    It may have `watched`: those of its metrics, all positive, that show when it fails, each with
    the side, "above" or "below", on which a value far outside its running spread is a sign of
    failure. The trainer then watches them as it does the loss.

    An objective over classes also has `classify`: like `embed_image`, but it returns the logits
    [b c] of the training classes. One that recognizes tags has `recognize`, which returns the
    logits [b c] of the tags of its list, `tags`.

    Attributes:
      frozen: the paths of parameters that it leaves as they are, such as "model/image".
      takes_views: whether it accepts several views of an image.
      table_sizes: by the name of each table, its rows without padding.
    """

    frozen: tuple[str, ...]
    takes_views: bool
    table_sizes: Mapping[str, int]

    def check_precomputed(self, folders: Mapping[str, str], where: str) -> None:
        """Checks the folders of precomputed fields before training.

        Args:
          folders: by the name of a field of the batch, such as "clusters", where its values are.
          where: the place in the config, for messages.

        Raises:
          ConfigError: one is missing or does not fit.
        """

    def describe_fields(self) -> Mapping[str, tuple[int, ...]]:
        """Tells which int32 fields an example must have besides the usual ones.

        Returns:
          By the name of a field, its shape for one example, such as (8,) for `clusters` [b 8].
        """

    def scale(self, params: Params) -> Float[Array, ""] | None:
        """Returns the factor of the cosines of images and texts.

        Args:
          params: the parameters.

        Returns:
          A scalar, one over the temperature; None if no cosines are compared.
        """

    def init(self, rng: PRNGKeyArray, batch: Batch) -> tuple[Params, ModelState]:
        """Makes fresh parameters and statistics.

        Args:
          rng: a random key.
          batch: a batch of the right shapes.

        Returns:
          Parameters, a dictionary with `model`, and statistics, a dictionary. Leaves may be boxed
          with the logical names of their axes (`flax.linen.Partitioned`).
        """

    def augment(self, batch: Batch, rng: PRNGKeyArray, step: Int[Array, ""]) -> Batch:
        """Changes the whole global batch on the device before it is split, as MixUp does.

        Args:
          batch: the batch as the loader made it.
          rng: the key of the step.
          step: updates done so far; whatever depends on it is put into the batch as an array
            [b ...].

        Returns:
          The batch that all other methods see.
        """

    def init_tables(self, rng: PRNGKeyArray) -> Mapping[str, Array]:
        """Makes the tables of which a step changes only a few rows; most objectives have none.

        Args:
          rng: a random key.

        Returns:
          By name, the initial values [rows d] of each table of `table_sizes`.
        """

    def draw(self, tables: Mapping[str, Any], batch: Batch, rng: PRNGKeyArray) -> Mapping[str, Any]:
        """Draws the rows of each table that a step works with; `loss` gets them in its parameters.

        Args:
          tables: `row_tables.Table`s, by name.
          batch: the batch that `augment` returned.
          rng: the key of the step.

        Returns:
          `row_tables.Drawn`s, by name; they become `params["drawn"]` in `loss`.
        """

    def prepare(self, params: Params, batch: Batch, rng: PRNGKeyArray) -> Any:
        """Computes what all examples share in this step, such as the embeddings of classes.

        Args:
          params: the parameters.
          batch: the whole batch that `augment` returned.
          rng: the key of the step.

        Returns:
          Anything, which `loss` gets; gradients flow through it. None if there is nothing.
        """

    def encode(
        self, params: Params, model_state: ModelState, batch: Batch, rng: PRNGKeyArray
    ) -> tuple[Outputs, ModelState]:
        """Encodes a batch, or a micro-batch, example by example, in training mode.

        Args:
          params: the parameters.
          model_state: the statistics.
          batch: the whole batch or some rows of it.
          rng: the key of the step, or of the micro-batch.

        Returns:
          Outputs, a dictionary of arrays with the batch leading, and the statistics that follow.
        """

    def loss(self, params: Params, outputs: Outputs, prepared: Any, batch: Batch) -> MeasuredLoss:
        """Compares the outputs of the whole batch.

        Args:
          params: the parameters; with tables also the rows that `draw` returned, as `drawn`.
          outputs: what `encode` returned for the whole batch.
          prepared: what `prepare` returned.
          batch: the whole batch that `augment` returned.

        Returns:
          The loss, a scalar, and named scalars to log with it, none by a name of `OF_EVERY_RUN`.
        """

    def project(self, params: Params) -> Params:
        """Moves parameters back into their bounds after an update.

        Args:
          params: the parameters after the update.

        Returns:
          Parameters of the same shapes.
        """

    def image_features(self, params: Params, model_state: ModelState, batch: Batch) -> Features:
        """Returns what the image tower pools, in evaluation mode.

        Args:
          params: the parameters.
          model_state: the statistics.
          batch: with `image`.

        Returns:
          Features [b f], not normalized.
        """

    def embed_image(self, params: Params, model_state: ModelState, batch: Batch) -> Embeddings:
        """Embeds images, in evaluation mode.

        Args:
          params: the parameters.
          model_state: the statistics.
          batch: with `image`.

        Returns:
          Embeddings [b d] of unit length.
        """

    def embed_text(self, params: Params, model_state: ModelState, batch: Batch) -> Embeddings:
        """Embeds texts, in evaluation mode.

        Args:
          params: the parameters.
          model_state: the statistics.
          batch: with `text` and `text_mask`.

        Returns:
          Embeddings [b d] of unit length.
        """


@runtime_checkable
class SavedPart(Protocol):
    """What a checkpoint holds besides the training state, saved separately by every process."""

    def write(self, folder: str) -> None:
        """Writes its state into an empty folder; returns once it is written."""

    def read(self, folder: str) -> None:
        """Restores the state that was written into a folder."""


@runtime_checkable
class TrainingData(Protocol):
    """Makes this process's rows of every training batch.

    Attributes:
      batch_size: rows of the global batch.
      num_examples: examples of all processes together; None if not known.
      broken: number of examples that this process knows to be broken.
      sizes: by the name of each part of the examples, their number and a checksum of the sizes of
        their shards, which a run that continues must find again; empty if not known.
      shards: the name and contents of each shard, which all processes must agree on.
      saved: what a checkpoint must hold for `iterate` to start at its step, by name; empty if the
        step alone is enough.
    """

    batch_size: int
    num_examples: int | None
    broken: int
    sizes: Mapping[str, str]
    shards: Mapping[str, str]
    saved: Mapping[str, SavedPart]

    def epochs(self, step: int) -> dict[str, float]:
        """Returns how many epochs have passed before a step, by logged name, such as `epoch`."""

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """Makes the batch of a step, counted from 0: arrays of NumPy by the names of a batch."""

    def iterate(self, start_step: int) -> Iterator[dict[str, np.ndarray]]:
        """Yields the batches from a step on.

        A run that has left out data starts at a step later than its own, so what is in `saved` may
        have to be read further.
        """

    def list_examples(self, step: int) -> list[str]:
        """Returns the names of the examples in a step's batch, row by row; empty if not known."""

    def close(self) -> None:
        """Stops the work that runs ahead; the object cannot be used again."""

    def __enter__(self) -> "TrainingData": ...

    def __exit__(self, *exception: object) -> None: ...
