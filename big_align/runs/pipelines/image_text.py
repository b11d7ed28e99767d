"""The training data of a config as a `tf.data.Dataset`, to which a pipeline of yours can add."""

import weakref
from typing import Any

import numpy as np
from jaxtyping import Int

from big_align.core.nodes import Node
from big_align.runs import streams
from big_align.runs.pipelines.loader_dataset import as_dataset


def image_text(config: Node, start_step: int = 0, rows: Int[np.ndarray, " r"] | None = None) -> Any:
    """Makes the batches of the loader as a `tf.data.Dataset`, from a step on.

    Args:
      config: the config of a run; its `data`, `tokenizer`, `batch_size` and `seed` are read.
      start_step: the first batch is that of this step.
      rows: the rows of the global batch that this process makes, ascending; None is all.

    Raises:
      ConfigError: a field does not fit; the message names it.
    """
    loader = streams.build_loader(config, streams.make_tokenizer(config), rows)
    dataset = as_dataset(loader, start_step)
    weakref.finalize(dataset, loader.close)  # every iterator holds its data set
    return dataset
