"""Whether a model finds the tags that a caption leaves out (IDEA, Fig. 6), by the others."""

import numpy as np
from jaxtyping import Bool

from big_align.core.errors import UserError
from big_align.data.examples import Source
from big_align.data.tags.tag_extraction import TagExtractor
from big_align.data.tags.tag_list import TagList
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.exhibits.exhibit import Measured
from big_align.evaluators.exhibits.pixels import read_pixels
from big_align.evaluators.exhibits.tags import Found, show_found
from big_align.evaluators.features import mark_classes
from big_align.evaluators.tag_scores import (
    choose_top,
    fraction,
    mean_average_precision,
    measure_choice,
)
from big_align.evaluators.tag_truth import TagEvaluator, recognize


class FoundTags(TagEvaluator):
    """Precision and recall of found tags, with a few captions given and the others as the truth.

    The first captions of every image are given, as in training with `captions_used`. The tags of
    the other captions count as missed, and the model is to find these. Tags that it finds but no
    caption names count as wrong, though some of them are in the image. As a baseline, the most
    frequent tags are chosen, as many as the model finds, also without the given ones.

    Args:
      source: examples with an image and several captions.
      given: number of captions of an image that are given.

    Raises:
      ValueError: a value is out of range.
      UserError: the tag list cannot be read.
    """

    numbers = (
        *("precision", "recall", "f1", "found_per_image", "missed_per_image", "map"),
        *("frequent_precision", "frequent_recall", "frequent_map"),
    )

    def __init__(
        self,
        source: Source,
        transform: str,
        tags: str,
        given: int = 1,
        threshold: float = 0.6,
        top_k: int = 0,
        max_broken_fraction: float = 0.01,
    ):
        super().__init__(source, transform, tags, threshold, top_k, max_broken_fraction)
        if given < 0:
            raise ValueError(f"given = {given} must be a number of captions")
        self.given = given
        self._extract = TagExtractor(self.tags.names, len(self.tags))

    def find(self, embedder: Embedder) -> Found:
        """Recognizes the tags of all images and compares them with the captions."""
        with self.open(embedder) as loader:
            logits, number = recognize(embedder, loader, self.tags, "found_tags")
            every = loader.captions()
        captions = [every[n] for n in number.tolist()]
        first = [texts[: self.given] for texts in captions]
        given, named = (
            mark_classes(list(map(self._extract.find, texts)), len(self.tags))
            for texts in (first, captions)
        )
        missed = named & ~given
        found = self.choose(logits, ~given)
        return Found(logits, given, missed, found, first, number)

    def measure(self, embedder: Embedder) -> Measured:
        """Returns the scores of the model and of the most frequent tags; pictures show found tags.

        Precision and recall are over all tags and images together. `map` is the mean average
        precision over the tags that the given captions of some image miss; for each tag, images
        whose given captions name it are left out. `frequent_map` is that of a score that is the
        same for all images.
        """
        everything = self.find(embedder)
        logits, given, missed, found, *_ = everything
        if not missed.any():
            raise UserError(
                f"found_tags: no tag is missed by the first {self.given} captions: the source must "
                "read all captions of an image"
            )
        scores = measure_choice(found, missed, ~given)
        prevalence = missed.sum(axis=0) / np.maximum((~given).sum(axis=0), 1)
        numbers = {
            **{k: scores[f"overall_{k}"] for k in ("precision", "recall", "f1")},
            "found_per_image": found.sum() / len(found),
            "missed_per_image": missed.sum() / len(missed),
            "map": mean_average_precision(logits, missed, ~given),
            **measure_frequent(self.tags, given, missed, found.sum() / len(found)),
            "frequent_map": float(prevalence[missed.any(axis=0)].mean()),
        }
        return Measured(
            numbers, lambda: show_found(everything, self.tags.names, read_pixels(self.source))
        )


def measure_frequent(
    tags: TagList, given: Bool[np.ndarray, "n c"], missed: Bool[np.ndarray, "n c"], per_image: float
) -> dict[str, float]:
    """Returns precision and recall of choosing the most frequent tags that are not given.

    `missed` are the tags of each image that are to be found. The fractional part of the number of
    tags chosen per image is the fraction of images, drawn at random, that get one more: the
    expectation is returned.
    """
    counts = np.broadcast_to(tags.counts.astype(np.float64), given.shape)
    fewer = int(per_image)
    named = [choose_top(counts, ~given, count) for count in (fewer, fewer + 1)]
    weight = per_image - fewer
    right, chosen = (
        (1 - weight) * x[0] + weight * x[1]
        for x in ([(n & missed).sum() for n in named], [n.sum() for n in named])
    )
    return {
        "frequent_precision": fraction(right, chosen),
        "frequent_recall": fraction(right, missed.sum()),
    }
