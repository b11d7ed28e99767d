"""What is known of the examples behind a `tf.data.Dataset`."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

ATTRIBUTE = "big_align_facts"


@dataclasses.dataclass(frozen=True)
class DatasetFacts:
    """What a pipeline may report to the trainer besides its batches.

    Attributes:
      num_examples: the number of examples of all processes; None if it is not known.
      sizes: a text for each part of the examples that differs if their order does.
      shards: what each shard is called and holds; the same in every process.
      epochs: maps a step to how many times the examples were passed through before it, by the names
        under which that is logged.
      broken: returns how many examples this process has found broken.
      error: returns what Python code has raised inside the data set, or None.
    """

    num_examples: int | None = None
    sizes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    shards: Mapping[str, str] = dataclasses.field(default_factory=dict)
    epochs: Callable[[int], dict[str, float]] = lambda step: {}
    broken: Callable[[], int] = lambda: 0
    error: Callable[[], Exception | None] = lambda: None


def attach_facts(dataset: Any, facts: DatasetFacts) -> Any:
    """Attaches facts to a data set and returns it."""
    setattr(dataset, ATTRIBUTE, facts)
    return dataset


def facts_of(dataset: Any) -> DatasetFacts:
    """Returns the facts that a data set carries, or empty ones if it carries none."""
    return getattr(dataset, ATTRIBUTE, DatasetFacts())
