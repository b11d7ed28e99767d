"""The loader as a `tf.data.Dataset`, for trainers that take one."""

from collections.abc import Iterator
from typing import Any

from big_align.data import tensorflow_on_cpu
from big_align.data.tf_data.dataset_loader import DatasetFacts, attach_facts
from big_align.data.workers.batch_memory import HostBatch


def as_dataset(loader: Any, start_step: int = 0) -> Any:
    """Makes a `tf.data.Dataset` of a loader's batches; each of its iterators begins at one step.

    Args:
      loader: what `big_align.make_loader` returns; it must stay open as long as the data set is
        used.
      start_step: the step of the first batch, so that a run can resume.

    Returns:
      An endless data set of dictionaries of tensors, the batches of the loader.

    Examples:
      >>> import big_align
      >>> with big_align.make_loader("quickstart", "--config.batch_size=4") as loader:
      ...     dataset = big_align.as_dataset(loader)
      ...     batch = next(iter(dataset))
      >>> print(batch["image"].shape)
      (4, 16, 16, 3)
    """
    tf = tensorflow_on_cpu.load()
    signature = {
        name: tf.TensorSpec(array.shape, tf.as_dtype(array.dtype))
        for name, array in loader.batch(start_step).items()
    }
    raised: list[Exception] = []

    def iterate() -> Iterator[HostBatch]:
        try:
            yield from loader.iterate(start_step)
        except Exception as error:  # TensorFlow passes on only its text
            raised.append(error)
            raise

    dataset = tf.data.Dataset.from_generator(iterate, output_signature=signature)
    facts = DatasetFacts(
        num_examples=loader.num_examples,
        sizes=loader.sizes,
        shards=loader.shards,
        epochs=loader.epochs,
        broken=lambda: loader.broken,
        error=lambda: next(iter(raised), None),
    )
    return attach_facts(dataset, facts)
