"""How well a model recognizes the tags of images (IDEA §4.2): mAP, precision, recall and F1."""

import numpy as np
from jaxtyping import Bool

from big_align.core.errors import UserError, check_known
from big_align.data.examples import Source
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.tags.tag_extraction import TagExtractor
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.features import mark_classes
from big_align.evaluators.tag_scores import CHOICES, mean_average_precision, measure_choice
from big_align.evaluators.tag_truth import TagEvaluator, mark_labels, number_tags, recognize

TRUTHS = ("captions", "labels", "idea", "verified")


class TagRecognition(TagEvaluator):
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
      truth: what is true, "captions", "labels", "idea" or "verified".
      absent_source: for "verified", the same examples with the labels that are verified to be
        absent from the image.
      class_list: for labels, a class list that names them; None for the sources' own names.

    Raises:
      ValueError: a value is out of range.
      UserError: the tag list cannot be read, or the labels do not fit it.
    """

    numbers = ("map", *CHOICES, "tags")

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
        super().__init__(source, transform, tags, threshold, top_k, max_broken_fraction)
        check_known("truth", truth, TRUTHS)
        if (truth == "verified") != (absent_source is not None):
            raise ValueError("truth = 'verified' and absent_source go together")
        if truth == "captions" and class_list:
            raise ValueError("class_list is of labels: set truth = 'labels' or 'idea'")
        self.absent_source = absent_source
        self.truth = truth
        if truth == "captions":
            self._extract = TagExtractor(self.tags.names, len(self.tags))
            return
        self._present = number_tags(source, self.tags, class_list)
        if absent_source is not None:
            if not np.array_equal(absent_source.shard_sizes, source.shard_sizes):
                raise UserError(
                    f"absent_source has {absent_source.shard_sizes.sum()} examples and source "
                    f"{source.shard_sizes.sum()}, or other shards: both must be the same examples"
                )
            self._absent = number_tags(absent_source, self.tags, class_list)

    def __call__(self, embedder: Embedder) -> dict[str, float]:
        """Recognizes the tags of all images and returns the scores.

        `tags` is the number of tags that some image has: `map` and the means are over these.
        """
        with self.open(embedder) as loader:
            logits, number = recognize(embedder, loader, self.tags, "tag_recognition")
            truth = self._read_truth(loader, embedder)
        present, known = (x[number] for x in truth)
        if self.truth == "idea":
            labeled = present.any(axis=1)
            logits, present, known = (x[labeled] for x in (logits, present, known))
        return {
            "map": mean_average_precision(logits, present, known),
            **measure_choice(self.choose(logits, known), present, known),
            "tags": float((present & known).any(axis=0).sum()),
        }

    def _read_truth(
        self, loader: EvalLoader, embedder: Embedder
    ) -> tuple[Bool[np.ndarray, "n c"], Bool[np.ndarray, "n c"]]:
        """Returns the tags of every example, also of broken ones, and whether a tag is known.

        A tag that is said to be both present and absent counts as present.
        """
        count = len(self.tags)
        if self.truth == "captions":
            present = mark_classes(list(map(self._extract.find, loader.captions())), count)
            return present, np.ones_like(present)
        present = mark_labels(loader.label_sets(), self._present, count)
        if self.absent_source is None:
            asked = np.isin(np.arange(count), self._present)
            return present, np.broadcast_to(asked, present.shape)
        with self.open(embedder, self.absent_source) as absent_loader:
            absent = mark_labels(absent_loader.label_sets(), self._absent, count)
        return present, present | absent
