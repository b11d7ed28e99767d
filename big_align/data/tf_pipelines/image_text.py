"""The training data of a config, decoded and tokenized by TensorFlow."""

from typing import Any

import numpy as np
from jaxtyping import Int

from big_align.data.tf_data.stream_dataset import make_stream_dataset
from big_align.nodes import Node
from big_align.runs import streams


def image_text(config: Node, start_step: int = 0, rows: Int[np.ndarray, " r"] | None = None) -> Any:
    """Makes the batches of the loader as a `tf.data.Dataset`, from a step on.

    Examples, crops, flips, texts, ids and labels are the loader's; pixels differ by rounding, by
    less than half a level on average. `config.data.transform` may hold `frames.OPERATIONS`.

    Args:
      config: the config of a run; its `data`, `tokenizer`, `batch_size` and `seed` are read.
      start_step: the first batch is that of this step.
      rows: the rows of the global batch that this process makes, ascending; None is all.

    Raises:
      UserError: the transform has an operation that no graph can do, or the data are wrong.
    """
    tokenizer = streams.make_tokenizer(config)
    parts = streams.build_streams(config, tokenizer)
    settings = next(iter(parts.values())).settings
    return make_stream_dataset(
        {name: part.rows for name, part in parts.items()},
        tokenizer,
        start_step,
        rows,
        settings.num_threads,
        settings.prefetch,
    )
