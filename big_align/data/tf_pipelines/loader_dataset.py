"""The loader as a `tf.data.Dataset`, for trainers that take one."""

from typing import Any

from big_align.data import tensorflow_on_cpu
from big_align.data.loading.loader import TrainLoader
from big_align.data.tf_data.facts import DatasetFacts, attach_facts


def as_dataset(loader: TrainLoader, start_step: int = 0) -> Any:
    """Makes a `tf.data.Dataset` of a loader's batches; each of its iterators begins at one step.

    Args:
      loader: must stay open as long as the data set is used.
      start_step: the step of the first batch, so that a run can resume.

    Returns:
      An endless data set of batches as `types.Batch` describes them.
    """
    tf = tensorflow_on_cpu.load()
    signature = {
        name: tf.TensorSpec(array.shape, tf.as_dtype(array.dtype))
        for name, array in loader.batch(start_step).items()
    }
    dataset = tf.data.Dataset.from_generator(
        lambda: loader.iterate(start_step), output_signature=signature
    )
    facts = DatasetFacts(
        num_examples=loader.num_examples,
        sizes=loader.sizes,
        shards=loader.shards,
        epochs=loader.epochs,
        broken=lambda: loader.broken,
    )
    return attach_facts(dataset, facts)
