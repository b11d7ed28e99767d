"""What is known of the examples behind a `tf.data.Dataset`."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

ATTRIBUTE = "big_align_facts"


@dataclasses.dataclass(frozen=True)
class DatasetFacts:
    """What a pipeline may tell the trainer besides its batches.

    Attributes:
      num_examples: of all processes; None where it is not known.
      shards: what each shard is called and holds; the same in every process.
      epochs: from a step to how often the examples have been gone through before it, by the names
        under which that is logged.
      broken: how many examples this process has found broken.
      error: what Python has raised inside the data set, None so far.
    """

    num_examples: int | None = None
    shards: Mapping[str, str] = dataclasses.field(default_factory=dict)
    epochs: Callable[[int], dict[str, float]] = lambda step: {}
    broken: Callable[[], int] = lambda: 0
    error: Callable[[], Exception | None] = lambda: None


def attach_facts(dataset: Any, facts: DatasetFacts) -> Any:
    """Returns a data set, which then carries facts."""
    setattr(dataset, ATTRIBUTE, facts)
    return dataset


def facts_of(dataset: Any) -> DatasetFacts:
    """Returns what a data set carries; where it carries nothing, that nothing is known."""
    return getattr(dataset, ATTRIBUTE, DatasetFacts())
