"""Accuracy of an objective's own classifier on images of its training classes."""

from big_align.core.errors import UserError, check_at_least
from big_align.core.nodes import Given
from big_align.data.derived.relabeled_source import join_labels
from big_align.data.examples import Source
from big_align.data.labels.classes import ClassList
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.evaluator import ImageEvaluator
from big_align.evaluators.exhibits.confusion import show_confusion
from big_align.evaluators.exhibits.exhibit import Measured
from big_align.evaluators.zero_shot import ACCURACIES, tell_accuracy


class Classification(ImageEvaluator):
    """Accuracy among the classes of one part of the training data.

    If training uses several parts, their classes follow one another in the classifier; an image is
    classified among those of its own part.

    Args:
      source: examples with an image and a label, which counts from 0 in the part.
      first_class: index of the part's first class in the classifier: its label offset.
      num_classes: number of classes of the part; None for all from `first_class` on.
      trained_classes: all classes of the classifier; None if only their number is known. A source
        that names its classes is joined with them by name.
    """

    reads = ("label",)
    numbers = ACCURACIES
    needed = ("classify",)

    def __init__(
        self,
        source: Source,
        transform: str,
        first_class: int = 0,
        num_classes: int | None = None,
        trained_classes: Given[ClassList | None] = None,
        max_broken_fraction: float = 0.01,
    ):
        if first_class < 0:
            raise ValueError(f"first_class = {first_class} must not be negative")
        check_at_least(1, num_classes=num_classes)
        self.names: tuple[str, ...] = ()
        end = None if num_classes is None else first_class + num_classes
        if trained_classes and (own := range(len(trained_classes))[first_class:end]):
            part = trained_classes.take(own)
            source = join_labels(source, part, "classification.source", "the classifier")
            self.names = part.names
        super().__init__(source, transform, max_broken_fraction)
        self.first_class = first_class
        self.num_classes = num_classes

    def measure(self, embedder: Embedder) -> Measured:
        """Classifies all images and returns the accuracies; its pictures show confused classes."""
        with self.open(embedder) as loader:
            logits, readable = embedder.classify_images(loader.images(), loader.num_examples)
            label = loader.labels()[readable]
        known = logits.shape[1]
        end = known if self.num_classes is None else self.first_class + self.num_classes
        if not self.first_class < end <= known:
            raise UserError(
                f"classification: first_class = {self.first_class} and num_classes = "
                f"{self.num_classes} do not fit the {known} classes of the classifier"
            )
        logits = logits[readable, self.first_class : end]
        outside = (label < 0) | (label >= logits.shape[1])
        if outside.any():
            raise UserError(
                f"classification: {outside.sum()} labels, {label[outside][0]} among them, are not "
                f"in the {logits.shape[1]} classes from first_class = {self.first_class} on"
            )
        names = self.names or [str(number) for number in range(logits.shape[1])]
        return Measured(tell_accuracy(logits, label), lambda: show_confusion(logits, label, names))
