"""A source whose labels are the positions of another class list."""

from collections.abc import Sequence

import numpy as np

from big_align.benchmarks.benchmark import ABSENT
from big_align.data import examples
from big_align.data.sources.split_source import ChosenExamples
from big_align.errors import UserError


class RelabeledSource(ChosenExamples):
    """Examples of a source, with each label mapped by a table.

    Args:
      source: the examples.
      order: the new label for each label of the source, or ABSENT for a class that is left out.
      title: title of the data set, for error messages.
      leave_out: whether to skip examples of classes that are left out, which reads all labels.
        Otherwise they are an error.
    """

    class_names: tuple[str, ...] | None = None

    def __init__(
        self,
        source: examples.Source,
        order: Sequence[int],
        title: str,
        leave_out: bool = False,
    ):
        super().__init__(source)
        self._title = title
        self._order = np.array(order, np.int32)
        self._kept = _find_kept(source, self._order) if leave_out else None
        sizes = [len(kept) for kept in self._kept] if leave_out else source.shard_sizes
        self.shard_sizes = np.array(sizes, np.int64)
        self.broken = source.broken

    def read(self, shard: int, index: int) -> examples.Example:
        """Reads an example; raises BrokenExample, or UserError for a label outside the table."""
        example = super().read(shard, index)
        example.labels = self._relabel(example.labels, shard, index)
        return example

    def read_text(self, shard: int, index: int) -> tuple[list[str], tuple[int, ...]]:
        """Reads captions and labels; raises BrokenExample or UserError."""
        captions, labels = super().read_text(shard, index)
        return captions, self._relabel(labels, shard, index)

    def _place(self, shard: int, index: int) -> int:
        return index if self._kept is None else int(self._kept[shard][index])

    def _relabel(self, labels: tuple[int, ...], shard: int, index: int) -> tuple[int, ...]:
        for label in labels:
            if label >= len(self._order) or self._order[label] == ABSENT:
                why = "is left out of" if label < len(self._order) else "is none of the labels of"
                raise UserError(
                    f"{self.name(shard, index)}: the label {label} {why} {self._title}, which has "
                    f"{len(self._order)} from 0 on"
                )
        return tuple(dict.fromkeys(int(self._order[label]) for label in labels))


def _find_kept(source: examples.Source, order: np.ndarray) -> list[np.ndarray]:
    """Returns the examples of each shard whose class is not left out."""
    kept = []
    for shard, size in enumerate(source.shard_sizes.tolist()):
        labels = [source.read_text(shard, index)[1] for index in range(size)]
        there = [n for n, some in enumerate(labels) if all(order[label] >= 0 for label in some)]
        kept.append(np.array(there, np.uint32))
    return kept
