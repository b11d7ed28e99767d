"""How well a model recognizes the tags of images (IDEA §4.2): mAP, precision, recall and F1."""

import numpy as np

from big_align.core.nodes import Node
from big_align.core.types import Objective
from big_align.data.examples import Source
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.tags.tag_extraction import TagExtractor
from big_align.data.tags.tag_list import read_tag_list
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.tag_scores import (
    CHOICES,
    check_choice,
    choose_tags,
    mean_average_precision,
    measure_choice,
)
from big_align.evaluators.tag_truth import LabeledTags, Truth, check_tags, mark_tags, recognize

TRUTHS = ("captions", "labels", "idea", "verified")


class TagRecognition:
    """Mean average precision, and precision, recall and F1 of the tags chosen.

    The truth is one of these; a label is a tag if its class has the name of one:

    - "captions": the tags that all captions of an image name, which misses what nobody mentioned.
    - "labels": the labels of every image, which are complete.
    - "idea": as §4.2 measures on OpenImages, which "is not fully labeled, resulting in a higher
      real class precision than the calculated": a tag without a label counts as absent, and images
      without a label that is a tag are left out.
    - "verified": a second source has the labels that were verified to be absent. What nobody
      verified does not count, so the numbers are higher.

    Args:
      source: examples with an image, and captions or labels.
      transform: image operations, without randomness.
      tags: the file of the tag list that the model was trained with.
      truth: what is true, "captions", "labels", "idea" or "verified".
      absent_source: for "verified", the same examples with the labels that are verified to be
        absent from the image.
      class_list: for labels, a class list that names them; None for the sources' own names.
      threshold: probability above which a tag is chosen.
      top_k: number of tags to choose per image instead; 0 uses the threshold.
      max_broken_fraction: the fraction of broken examples above which evaluation stops.

    Raises:
      ValueError: a value is out of range.
      UserError: the tag list cannot be read, or the labels do not fit it.
    """

    numbers = ("map", *CHOICES, "tags")
    lower_is_better = ()

    @classmethod
    def needs(cls, settings: Node) -> tuple[str, ...]:
        """Returns the methods of an objective that it calls."""
        return ("recognize",)

    @classmethod
    def check_objective(cls, settings: Node, objective: Objective) -> None:
        """Checks that the objective recognizes the tags of the list; see `check_tags`."""
        check_tags(settings["tags"], objective)

    def __init__(
        self,
        source: Source,
        transform: str,
        tags: str,
        truth: str = "captions",
        absent_source: Source | None = None,
        class_list: str | None = None,
        threshold: float = 0.5,
        top_k: int = 0,
        max_broken_fraction: float = 0.01,
    ):
        check_choice(threshold, top_k)
        if truth not in TRUTHS:
            raise ValueError(f"truth = {truth!r} is unknown; known: {', '.join(TRUTHS)}")
        if (truth == "verified") != (absent_source is not None):
            raise ValueError("truth = 'verified' and absent_source go together")
        if truth == "captions" and class_list:
            raise ValueError("class_list is of labels: set truth = 'labels' or 'idea'")
        self.source = source
        self.absent_source = absent_source
        self.truth = truth
        self.transform = transform
        self.tags = read_tag_list(tags)
        self.threshold = threshold
        self.top_k = top_k
        self.max_broken_fraction = max_broken_fraction
        self._labeled = self._extract = None
        if truth == "captions":
            self._extract = TagExtractor(self.tags.names, len(self.tags))
        else:
            self._labeled = LabeledTags(source, self.tags, class_list, absent_source)

    def __call__(self, embedder: Embedder) -> dict[str, float]:
        """Recognizes the tags of all images and returns the scores.

        `tags` is the number of tags that some image has: `map` and the means are over these.

        Raises:
          UserError: the model recognizes other tags, or no image has any of them.
        """
        with self._open(self.source, embedder) as loader:
            logits, number = recognize(embedder, loader, self.tags, "tag_recognition")
            truth = self._read_truth(loader, embedder)
        present, known = (x[number] for x in truth)
        if self.truth == "idea":
            labeled = present.any(axis=1)
            logits, present, known = (x[labeled] for x in (logits, present, known))
        score = mean_average_precision(logits, present, known)
        chosen = choose_tags(logits, known, self.threshold, self.top_k)
        return {
            "map": score,
            **measure_choice(chosen, present, known),
            "tags": float((present & known).any(axis=0).sum()),
        }

    def _open(self, source: Source, embedder: Embedder) -> EvalLoader:
        rows = embedder.batch_size, embedder.rows
        return EvalLoader(
            source, self.transform, *rows, max_broken_fraction=self.max_broken_fraction
        )

    def _read_truth(self, loader: EvalLoader, embedder: Embedder) -> Truth:
        """Returns the truth of every example of the loader, including broken ones."""
        if self._labeled is None:
            present = mark_tags(self._extract, loader.captions(), len(self.tags))
            return Truth(present, np.ones_like(present))
        absent = None
        if self.absent_source is not None:
            with self._open(self.absent_source, embedder) as absent_loader:
                absent = absent_loader.label_sets()
        return self._labeled.read(loader.label_sets(), absent)
