"""Sources whose labels are the positions of another class list."""

from collections.abc import Sequence

import numpy as np
from absl import logging

from big_align.core.errors import UserError
from big_align.core.words import write_name
from big_align.data import examples
from big_align.data.derived.derived_source import ChosenExamples
from big_align.data.labels.classes import OWN_NAMES, ClassList, read_classes
from big_align.data.labels.label_names import match_names

ABSENT = -1
"""The new label of a class that is left out."""


class RelabeledSource(ChosenExamples):
    """Examples of a source, with each label mapped by a table.

    A class whose new label is ABSENT is left out: with `leave_out` its examples are skipped, which
    reads all labels; otherwise they are an error, whose message names `title`, the list.
    """

    def __init__(
        self,
        source: examples.Source,
        order: Sequence[int],
        title: str,
        leave_out: bool = False,
        class_names: tuple[str, ...] | None = None,
    ):
        super().__init__(source)
        self._title = title
        self._order = np.array(order, np.int32)
        self._kept = _find_kept(source, self._order) if leave_out else None
        sizes = [len(kept) for kept in self._kept] if leave_out else source.shard_sizes
        self.shard_sizes = np.array(sizes, np.int64)
        self.broken = source.broken
        self.class_names = class_names

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


def join_labels(
    source: examples.Source, classes: ClassList, where: str, where_list: str = "the class list"
) -> examples.Source:
    """Makes the labels of a source positions in a class list, by the names that it has for them.

    It returns the source itself if its labels are these positions, or are only numbers. It warns if
    the source does not have all classes of the list, and raises UserError if the list lacks one of
    the source's. `where` and `where_list` are for messages.
    """
    if source.class_names is None:
        return source
    order = match_names(source.class_names, classes, where, where_list)
    if missing := sorted(set(range(len(classes))) - set(order.tolist())):
        logging.warning(
            "%s has no class %r; %d of the %d classes of the list are not there, and the others "
            "are matched by name", where, classes.names[missing[0]], len(missing), len(classes)
        )  # fmt: skip
    if np.array_equal(order, np.arange(len(order))):
        return source
    return RelabeledSource(source, order.tolist(), where, class_names=classes.names)


def join_sources(
    source: examples.Source, reference: examples.Source, where: str, where_reference: str
) -> examples.Source:
    """Makes the labels of a source those of another one, by the names that both have for them.

    It returns the source itself if the labels of both are the same, or only numbers in one of them,
    of which it warns; a class that the other one does not have is a UserError.
    """
    names, others = source.class_names, reference.class_names
    if names is not None and others is not None:
        return join_labels(source, ClassList.from_names(others), where, where_reference)
    if names is not others:
        first, second = where, where_reference
        named, other = (second, first) if names is None else (first, second)
        logging.warning("%s names its classes and %s only numbers them: it is taken to number "
                        "them in the same order", named, other)  # fmt: skip
    return source


def choose_classes(names: tuple[str, ...] | str, source: examples.Source) -> ClassList:
    """Returns a list of names, of what `read_classes` takes, or ("source") of the source's own."""
    if names != OWN_NAMES:
        return read_classes(names) if isinstance(names, str) else ClassList.from_names(names)
    if source.class_names is None:
        raise UserError("names = 'source', but the source has no names of its own: name a list")
    return ClassList.from_names([write_name(name) for name in source.class_names])


def _find_kept(source: examples.Source, order: np.ndarray) -> list[np.ndarray]:
    """Returns the examples of each shard whose class is not left out."""
    kept = []
    for shard, size in enumerate(source.shard_sizes.tolist()):
        labels = [source.read_text(shard, index)[1] for index in range(size)]
        there = [n for n, some in enumerate(labels) if all(order[label] >= 0 for label in some)]
        kept.append(np.array(there, np.uint32))
    return kept
