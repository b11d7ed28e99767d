"""Evaluators that choose tags, and tags by the labels of an image, which may be partial."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from big_align.core.errors import UserError
from big_align.core.nodes import Node
from big_align.core.types import Objective
from big_align.data.examples import Source
from big_align.data.labels.classes import read_classes
from big_align.data.labels.label_names import match_names, normalize_name
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.tags.tag_list import TagList, read_tag_list
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.evaluator import ImageEvaluator
from big_align.evaluators.tag_scores import check_choice, choose_tags


class TagEvaluator(ImageEvaluator):
    """Chooses tags of images by what a model recognizes.

    Args:
      tags: the file of the tag list that the model was trained with.
      threshold: probability above which a tag is chosen.
      top_k: number of tags to choose per image instead; 0 uses the threshold.
    """

    needed = ("recognize",)

    def __init__(
        self,
        source: Source,
        transform: str,
        tags: str,
        threshold: float,
        top_k: int,
        max_broken_fraction: float,
    ):
        super().__init__(source, transform, max_broken_fraction)
        check_choice(threshold, top_k)
        self.tags, self.threshold, self.top_k = read_tag_list(tags), threshold, top_k

    @classmethod
    def check_objective(cls, settings: Node, objective: Objective) -> None:
        """Checks that an objective recognizes the tags of the list."""
        path = settings["tags"]
        if read_tag_list(path).names != objective.tags.names:
            raise UserError(
                f"tags = {path!r} has other tags than {objective.tags.path}, which the objective "
                "is trained with"
            )

    def choose(
        self, logits: Float[np.ndarray, "n c"], known: Bool[np.ndarray, "n c"]
    ) -> Bool[np.ndarray, "n c"]:
        """Chooses the tags of each image among those that are known for it."""
        return choose_tags(logits, known, self.threshold, self.top_k)


def recognize(
    embedder: Embedder, loader: EvalLoader, tags: TagList, where: str
) -> tuple[Float[np.ndarray, "n c"], Int[np.ndarray, " n"]]:
    """Returns the logits of tags for the images that could be read, and the numbers of these.

    `where` is the name of the evaluator, for error messages.

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
    return logits[readable], np.flatnonzero(readable)


def number_tags(source: Source, tags: TagList, class_list: str | None) -> Int[np.ndarray, " k"]:
    """Returns the tag for each label of a source, -1 for none.

    A class is a tag if it has the same name, ignoring case; other classes are left out. A class
    list names the labels in place of the source.
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
    """Marks the tags for the labels of each image."""
    present = np.zeros((len(labels), count), bool)
    for row, some in zip(present, labels, strict=True):
        if some and max(some) >= len(numbers):
            raise UserError(f"the label {max(some)} is not among the {len(numbers)} classes")
        found = numbers[list(some)]
        row[found[found >= 0]] = True
    return present
