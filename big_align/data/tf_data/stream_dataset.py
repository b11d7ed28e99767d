"""The batches of the loader as a `tf.data.Dataset` of TensorFlow's own operations."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Int

from big_align.data import tensorflow_on_cpu
from big_align.data.loading import parallel
from big_align.data.loading.loader import TrainLoader
from big_align.data.loading.rows import RowStream
from big_align.data.text.tokenizers import Tokenizer
from big_align.data.tf_data.facts import DatasetFacts, attach_facts
from big_align.data.tf_data.row_graph import Tensors, make_rows
from big_align.data.tf_data.row_plans import RowPlanner
from big_align.data.tf_data.token_graph import make_tokenize


def make_stream_dataset(
    streams: Mapping[str, RowStream],
    tokenizer: Tokenizer,
    start_step: int = 0,
    rows: Int[np.ndarray, " r"] | None = None,
    num_threads: int | None = None,
    prefetch: int = 4,
) -> Any:
    """Makes the batches from a step on: the loader's, except for the rounding of pixels.

    Args:
      streams: the streams by name; a single one has the name "".
      tokenizer: the tokenizer of the streams.
      start_step: the first batch is that of this step.
      rows: the rows of the global batch that this process makes, ascending; None is all.
      num_threads: threads of the data set; None is one per core.
      prefetch: batches that are made ahead.

    Returns:
      An endless `tf.data.Dataset` of batches as `types.Batch` describes them.

    Raises:
      UserError: the graph cannot do what a stream asks for, or streams differ in a shape.
      ValueError: a value is out of range.
    """
    tf = tensorflow_on_cpu.load()
    parallel.check_at_least(0, start_step=start_step)
    # It makes no batch here: it checks streams and reports what is known about them.
    loader = TrainLoader(streams, rows, num_threads=1, num_processes=0, prefetch=prefetch)
    rows = parallel.check_rows(rows, loader.batch_size)
    planner = RowPlanner(streams, rows)
    num_threads = num_threads or parallel.count_cores()
    tokenize, shape = make_tokenize(tokenizer), planner.row["text"][0]

    @tf.autograph.experimental.do_not_convert
    def finish(batch: Tensors) -> Tensors:
        made = {name: batch[name] for name in batch if name not in ("texts", "count")}
        text, text_mask = tokenize(tf.reshape(batch["texts"], [-1]))
        there = tf.sequence_mask(batch["count"], planner.texts)
        text_mask = tf.reshape(text_mask, (len(rows), -1, shape[-1])) & there[:, :, None]
        return made | {
            "text": tf.reshape(text, (len(rows), *shape)),
            "text_mask": tf.reshape(text_mask, (len(rows), *shape)),
            "mask": tf.ones(len(rows), tf.bool),
        }

    single = make_rows(planner, start_step * len(rows), num_threads)
    dataset = single.batch(len(rows), drop_remainder=True).map(finish).prefetch(prefetch)
    options = tf.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = num_threads
    return attach_facts(
        dataset.with_options(options),
        DatasetFacts(
            num_examples=loader.num_examples,
            sizes=loader.sizes,
            shards=loader.shards,
            epochs=loader.epochs,
            broken=lambda: loader.broken,
            error=lambda: planner.error,
        ),
    )
