"""The tags of an image: by its captions, or by labels, which may be partial."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from big_align.core.errors import UserError
from big_align.core.types import Objective
from big_align.data.examples import Source
from big_align.data.labels.classes import read_classes
from big_align.data.labels.label_names import match_names, normalize_name
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.tags.tag_extraction import TagExtractor
from big_align.data.tags.tag_list import TagList, read_tag_list
from big_align.evaluators.embedder import Embedder


class Truth(NamedTuple):
    """What is known about the tags of images.

    Attributes:
      present: the tags of each image.
      known: whether the presence or absence of a tag in an image is known.
    """

    present: Bool[np.ndarray, "n c"]
    known: Bool[np.ndarray, "n c"]


class Recognized(NamedTuple):
    """The images of a set that could be read.

    Attributes:
      logits: logit of each tag.
      number: the source's example of each row.
    """

    logits: Float[np.ndarray, "n c"]
    number: Int[np.ndarray, " n"]


def check_tags(path: str, objective: Objective) -> None:
    """Checks that an objective recognizes the tags of a list.

    Raises:
      UserError: the list cannot be read, or the objective uses another one.
    """
    if read_tag_list(path).names != objective.tags.names:
        raise UserError(
            f"tags = {path!r} has other tags than {objective.tags.path}, which the objective is "
            "trained with"
        )


def recognize(embedder: Embedder, loader: EvalLoader, tags: TagList, where: str) -> Recognized:
    """Recognizes the tags of all images of a loader.

    Args:
      embedder: embedder of the model.
      loader: loader of the images.
      tags: the tags of the logits.
      where: name of the evaluator, for error messages.

    Raises:
      UserError: the model was trained with a list of different length, its logits are not finite,
        or there is no image.
    """
    logits, readable = embedder.recognize(loader.images(), loader.num_examples)
    if logits.shape[1] != len(tags):
        raise UserError(
            f"{where}: the model recognizes {logits.shape[1]} tags, and {tags.path} has "
            f"{len(tags)}: give the tag list that it was trained with"
        )
    if not readable.any():
        raise UserError(f"{where}: there are no images")
    if not np.isfinite(logits[readable]).all():
        raise UserError(f"{where}: logits are not finite; the model is broken")
    return Recognized(logits[readable], np.flatnonzero(readable))


def mark_tags(
    extract: TagExtractor, captions: Sequence[Sequence[str]], count: int
) -> Bool[np.ndarray, "n c"]:
    """Marks the tags that the captions of each image name.

    Args:
      extract: finds the tags of texts.
      captions: captions of each image.
      count: number of tags.
    """
    present = np.zeros((len(captions), count), bool)
    for row, texts in zip(present, captions, strict=True):
        row[list(extract.find(texts))] = True
    return present


class LabeledTags:
    """Tags from the labels of a source, whose classes have the names of tags.

    Args:
      source: examples with any number of labels: what is in the image.
      tags: the tag list.
      class_list: a class list of the package or a file that names the labels; None for the source's
        own names.
      absent_source: the same examples, with the labels that are verified to be absent from the
        image. A tag in neither source is unknown. None if the labels of `source` are complete.

    Raises:
      UserError: labels have no names, or none of the names is a tag; or the sources have different
        numbers of examples.
    """

    def __init__(
        self,
        source: Source,
        tags: TagList,
        class_list: str | None = None,
        absent_source: Source | None = None,
    ):
        self._count, self._absent = len(tags), None
        self._present = number_tags(source, tags, class_list)
        if absent_source is not None:
            if not np.array_equal(absent_source.shard_sizes, source.shard_sizes):
                raise UserError(
                    f"absent_source has {absent_source.shard_sizes.sum()} examples and source "
                    f"{source.shard_sizes.sum()}, or other shards: both must be the same examples"
                )
            self._absent = number_tags(absent_source, tags, class_list)

    def read(
        self, labels: Sequence[tuple[int, ...]], absent: Sequence[tuple[int, ...]] | None = None
    ) -> Truth:
        """Returns the tags of each image, and which of them are known.

        A tag that is said to be both present and absent counts as present.

        Args:
          labels: labels from `source`.
          absent: labels from `absent_source`, if there is one.
        """
        present = mark_labels(labels, self._present, self._count)
        if absent is not None:
            return Truth(present, present | mark_labels(absent, self._absent, self._count))
        asked = np.isin(np.arange(self._count), self._present)
        return Truth(present, np.broadcast_to(asked, present.shape))


def number_tags(source: Source, tags: TagList, class_list: str | None) -> Int[np.ndarray, " k"]:
    """Returns the tag for each label of a source, -1 for none.

    A class is a tag if it has the same name, ignoring case; other classes are left out.

    Raises:
      UserError: the labels have no names, or none of the names is a tag.
    """
    names = source.class_names
    if class_list:
        classes = read_classes(class_list)
        places = range(len(classes)) if names is None else match_names(names, classes, "the source")
        names = tuple(classes.names[place] for place in places)
    if names is None:
        raise UserError(
            "the source has no names of its labels; name a class list in `class_list`, so that "
            "they can be compared with the tags"
        )
    places = {normalize_name(name): place for place, name in enumerate(tags.names)}
    numbers = np.array([places.get(normalize_name(name), -1) for name in names], np.int64)
    if (numbers < 0).all():
        raise UserError(
            f"none of the {len(names)} classes, {names[0]!r} the first, is in the tag list "
            f"{tags.path}"
        )
    return numbers


def mark_labels(
    labels: Sequence[tuple[int, ...]], numbers: Int[np.ndarray, " k"], count: int
) -> Bool[np.ndarray, "n c"]:
    """Marks the tags for the labels of each image.

    Raises:
      UserError: a label has no name.
    """
    present = np.zeros((len(labels), count), bool)
    for row, some in zip(present, labels, strict=True):
        if some and max(some) >= len(numbers):
            raise UserError(f"the label {max(some)} is not among the {len(numbers)} classes")
        found = numbers[list(some)]
        row[found[found >= 0]] = True
    return present
