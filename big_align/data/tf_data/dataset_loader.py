"""A `tf.data.Dataset` of batches as the trainer takes its data."""

import contextlib
import dataclasses
import os
import pathlib
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from big_align.core.errors import UserError
from big_align.core.regular_files import read_regular
from big_align.data import tensorflow_on_cpu
from big_align.data.tf_data import batch_checks
from big_align.data.workers.batch_memory import HostBatch, Row

ATTRIBUTE = "big_align_facts"


@dataclasses.dataclass(frozen=True)
class DatasetFacts:
    """What a pipeline may report to the trainer besides its batches."""

    num_examples: int | None = None  # of all processes; None if it is not known
    # A text for each part of the examples, which is another one if their order is.
    sizes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # What each shard is called and holds; the same in every process.
    shards: Mapping[str, str] = dataclasses.field(default_factory=dict)
    epochs: Callable[[int], dict[str, float]] = lambda step: {}  # passes before a step, by name
    broken: Callable[[], int] = lambda: 0  # known to this process
    error: Callable[[], Exception | None] = lambda: None  # raised by Python code inside


def attach_facts(dataset: Any, facts: DatasetFacts) -> Any:
    """Attaches facts to a data set and returns it."""
    setattr(dataset, ATTRIBUTE, facts)
    return dataset


def facts_of(dataset: Any) -> DatasetFacts:
    """Returns the facts that a data set carries, or empty ones if it carries none."""
    return getattr(dataset, ATTRIBUTE, DatasetFacts())


SAVED = "pipeline"  # the name under which a checkpoint holds the state of a data set
POSITION, STEP = "iterator", "step"  # files of an iterator's position, and of its step


class DatasetLoader(contextlib.AbstractContextManager):
    """The batches of this process, from a data set that can begin at any step.

    `make` maps a step to the `tf.data.Dataset` whose first batch is that of the step. Batches have
    `rows` rows of the global batch, with the expected shapes and types without the batch's axis,
    and values within the limits. Messages name the place in the config that names the data set.
    """

    saved: Mapping[str, Any] = types.MappingProxyType({})

    def __init__(
        self,
        make: Callable[[int], Any],
        expected: Row,
        rows: int,
        batch_size: int,
        where: str,
        limits: batch_checks.Limits,
    ):
        self.batch_size = batch_size
        self._make, self._expected, self._rows, self._where = make, expected, rows, where
        self._limits = limits
        self._ahead: tuple[int, _Batches] | None = (0, self._start(0))

    @property
    def num_examples(self) -> int | None:
        """Examples of all processes; None if it is not known."""
        return self._facts.num_examples

    @property
    def broken(self) -> int:
        """Examples that this process knows to be broken."""
        return self._facts.broken()

    @property
    def sizes(self) -> Mapping[str, str]:
        """A text for each part of the examples that differs if their order does, if known."""
        return self._facts.sizes

    @property
    def shards(self) -> Mapping[str, str]:
        """What each shard is called and holds, as far as it is known."""
        return self._facts.shards

    def epochs(self, step: int) -> dict[str, float]:
        """Returns how many times the examples were passed through before a step, if known."""
        return self._facts.epochs(step)

    def batch(self, step: int) -> HostBatch:
        """Makes the batch of a step; `iterate` continues from there."""
        batches = self._begin(step)
        self._ahead = (step, batches)
        return batches.peek()

    def iterate(self, start_step: int) -> Iterator[HostBatch]:
        """Yields the batches from a step on."""
        return self._begin(start_step)

    def list_examples(self, step: int) -> list[str]:
        """Returns nothing: a data set does not say what its rows are."""
        return []

    def close(self) -> None:
        """Ends the work ahead, as soon as nothing holds an iterator."""
        self._ahead = None

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _begin(self, step: int) -> "_Batches":
        at, batches = self._ahead or (None, None)
        self._ahead = None
        if at == step:
            return batches
        del batches  # ends its work before other work begins
        return self._start(step)

    def _open(self, step: int) -> Any:
        tf = tensorflow_on_cpu.load(self._where)
        dataset = self._make(step)
        if not isinstance(dataset, tf.data.Dataset):
            raise UserError(
                f"{self._where} returns a {type(dataset).__name__}; it must return a "
                "tf.data.Dataset of batches"
            )
        batch_checks.check_spec(dataset.element_spec, self._expected, self._rows, self._where)
        return dataset

    def _start(self, step: int) -> "_Batches":
        """Begins the data set of a step, which from now on is what is reported on."""
        dataset = self._open(step)
        self._facts = facts_of(dataset)
        return _Batches(dataset, self._rows, self._limits, self._where)


class SavedDatasetLoader(DatasetLoader):
    """The batches of this process, from a data set whose iterator is saved with the state.

    The arguments are those of `DatasetLoader`; `make` is always called with step 0.
    """

    def __init__(self, *given: Any):
        self._position: str | None = None
        self._running: _Batches | None = None
        self._first = 0
        super().__init__(*given)
        self.saved = {SAVED: self}
        with tempfile.TemporaryDirectory() as folder:  # before hours of training rely on it
            _Batches(self._open(0), self._rows, self._limits, self._where).write(folder)

    def iterate(self, start_step: int) -> Iterator[HostBatch]:
        """Yields the batches from a step on, continuing from the position given to `read`."""
        self._running = super().iterate(start_step)
        self._first = start_step
        return self._running

    def write(self, folder: str) -> None:
        """Writes the position that `iterate` has reached into a folder, and its step."""
        self._running.write(folder)
        pathlib.Path(folder, STEP).write_text(str(self._first + self._running.count))

    def read(self, folder: str) -> None:
        """Makes `iterate` begin at the position that was written into a folder."""
        self._position = folder

    def _begin(self, step: int) -> "_Batches":
        if step == 0:
            return super()._begin(step)
        self._ahead = None
        batches, at = self._start(0), 0
        if self._position is not None:
            batches.read(self._position)
            at = int(read_regular(pathlib.Path(self._position, STEP)))
        if at > step:
            raise UserError(
                f"{self._where} saves the position of its iterator, which is at step {at} and not "
                f"at {step} or before: its function must take start_step to begin there"
            )
        for _ in range(step - at):
            next(batches)
        batches.count = 0
        return batches


class _Batches(Iterator[HostBatch]):
    """An iterator over a data set that can be peeked at, saved and restored."""

    def __init__(self, dataset: Any, rows: int, limits: batch_checks.Limits, where: str):
        self._iterator = dataset.as_numpy_iterator()
        self._error = facts_of(dataset).error
        self._rows, self._limits, self._where = rows, limits, where
        self._next: HostBatch | None = None
        self.count = 0

    def __next__(self) -> HostBatch:
        batch, self._next = self.peek(), None
        self.count += 1
        return batch

    def peek(self) -> HostBatch:
        """Returns the next batch, which stays the next one."""
        if self._next is None:
            self._next = self._take()
        return self._next

    def write(self, folder: str) -> None:
        """Writes the position; no batch may have been peeked at but not taken."""
        tf = tensorflow_on_cpu.load()
        saved = tf.train.Checkpoint(iterator=self._iterator)
        try:
            saved.write(os.path.join(folder, POSITION))
        except tf.errors.OpError as error:
            raise UserError(
                f"{self._where}: TensorFlow cannot save its iterator ({_first_line(error)}); let "
                "its function take start_step and begin there, or leave out what has a state, such "
                "as Python functions"
            ) from error

    def read(self, folder: str) -> None:
        """Moves to a position that was written."""
        tf = tensorflow_on_cpu.load()
        saved = tf.train.Checkpoint(iterator=self._iterator)
        try:
            saved.read(os.path.join(folder, POSITION)).assert_consumed()
        except (tf.errors.OpError, AssertionError) as error:
            raise UserError(
                f"{folder}: the position of another data set than {self._where} makes "
                f"({_first_line(error)}); use another --workdir or the former function"
            ) from error

    def _take(self) -> HostBatch:
        tf = tensorflow_on_cpu.load()
        try:
            batch = next(self._iterator)
        except StopIteration:
            raise UserError(
                f"{self._where} ended after {self.count} batches; repeat() makes it endless"
            ) from None
        except tf.errors.OpError as error:
            if cause := self._error():
                raise cause from error
            raise UserError(f"{self._where}: {_first_line(error)}") from error
        batch_checks.check_rows(batch, self._rows, self._where)
        batch = batch_checks.complete_batch(batch, self._rows)
        batch_checks.check_numbers(batch, self._limits, self._where)
        if not self.count:
            batch_checks.check_first(batch, self._limits, self._where)
        return batch


def _first_line(error: Exception) -> str:
    """Returns what an error of TensorFlow says, without the names of its operations."""
    lines = str(getattr(error, "message", error)).strip().splitlines()
    return lines[0].removeprefix("{{function_node __wrapped__").strip() if lines else "no reason"
