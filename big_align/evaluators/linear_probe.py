"""Linear probes of frozen features as in CLIP (Radford et al. 2021, appendix A.3)."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int

from big_align.core.errors import UserError
from big_align.core.nodes import Node
from big_align.data.derived.relabeled_source import join_sources
from big_align.data.examples import Source
from big_align.evaluators.classifiers.logistic_regression import (
    TOLERANCE,
    LinearClassifier,
    LogisticRegression,
)
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.evaluator import ImageEvaluator
from big_align.evaluators.features import (
    VERBS,
    LabeledFeatures,
    check_classes,
    check_what,
    find_classes,
    rarest_classes,
    shuffle_in_classes,
    widen_labels,
)
from big_align.evaluators.scores import OF_SEVERAL_LABELS, Score, lookup_score

STEPS, DECADES = 8, 6
"""Strengths are 10^(i / STEPS) from 10^-DECADES to 10^DECADES."""

Classifier = TypeVar("Classifier")


def search_strength(
    fit: Callable[[float, Classifier | None], Classifier], measure: Callable[[Classifier], Any]
) -> tuple[float, Classifier]:
    """Returns the best strength of regularization and its classifier, searched like CLIP.

    The search starts with 10^-6, 10^-4, ..., 10^6 and halves the interval around the one with the
    largest measure until there are 8 steps per decade, after 7 to 15 fits. Each fit starts from the
    classifier of the nearest strength so far, from strong to weak. Of several equally good
    strengths, the strongest is chosen.
    """
    fitted: dict[int, tuple[Any, Classifier]] = {}

    def visit(index: int) -> None:
        if abs(index) > STEPS * DECADES or index in fitted:
            return
        nearest = min(fitted, key=lambda other: abs(other - index), default=None)
        start = None if nearest is None else fitted[nearest][1]
        classifier = fit(10 ** (index / STEPS), start)
        fitted[index] = measure(classifier), classifier

    def find_best() -> int:
        return max(fitted, key=lambda index: (fitted[index][0], index))

    width = 2 * STEPS
    for index in range(STEPS * DECADES, -STEPS * DECADES - 1, -width):
        visit(index)
    while width > 1:
        width //= 2
        peak = find_best()
        visit(peak + width)
        visit(peak - width)
    best = find_best()
    return 10 ** (best / STEPS), fitted[best][1]


def rate(
    score: Score,
    scores: Float[np.ndarray, "n c"],
    label: Int[np.ndarray, "n"] | Bool[np.ndarray, "n c"],
) -> tuple[float, float]:
    """Rates a classifier on a validation set by its score, with ties broken by cross-entropy."""
    if label.ndim == 2:
        losses = np.logaddexp(0, np.where(label, -scores, scores)).sum(axis=1)
        return score(scores, label), -float(losses.mean())
    shifted = scores - scores.max(axis=1, keepdims=True)
    log_total = np.log(np.exp(shifted).sum(axis=1))
    return score(scores, label), float((shifted[np.arange(len(label)), label] - log_total).mean())


@dataclasses.dataclass(frozen=True)
class ProbeSettings:
    """How a linear probe is fitted.

    Attributes:
      score: one of `scores.SCORES`.
      validation_fraction: fraction of each training class to use if there is no validation set.
      max_iterations: iterations of L-BFGS.
      tolerance: length of the gradient, relative to the loss, that counts as zero.
      seed: seed of the split.
      few_examples: whether classes may have no training images, as when a thousand images have
        hundreds of classes (VTAB): their test images count as wrong. For one label per example.
    """

    score: str = "accuracy"
    validation_fraction: float = 0.2
    max_iterations: int = 1000
    tolerance: float = TOLERANCE
    seed: int = 0
    few_examples: bool = False

    def __post_init__(self):
        lookup_score(self.score)
        if not 0 < self.validation_fraction < 1:
            raise ValueError(f"validation_fraction = {self.validation_fraction} is not in (0, 1)")

    @property
    def several_labels(self) -> bool:
        """Whether an example has any number of labels."""
        return self.score in OF_SEVERAL_LABELS


class Probe(NamedTuple):
    """A fitted and scored probe."""

    numbers: dict[str, float]
    """The test score by its name, that of the validation set before it was added, and `strength`:
    the chosen one, CLIP's lambda, one over scikit-learn's C."""
    scores: Float[np.ndarray, "n k"]  # of test images; minus infinity without training examples
    label: Int[np.ndarray, "n"] | Bool[np.ndarray, "n k"]  # of test images, in `classes`
    classes: Int[np.ndarray, "k"]  # those that have examples


def fit_probe(
    train: LabeledFeatures,
    test: LabeledFeatures,
    validation: LabeledFeatures | None,
    settings: ProbeSettings,
) -> Probe:
    """Fits a probe on a training set and scores it on a test set.

    The strength of regularization is chosen on a validation set, by default a part of `train`.

    Raises:
      UserError: a class lacks an example in a set that needs one.
    """
    lenient = settings.few_examples and not settings.several_labels
    train, test, validation = widen_labels(train, test, validation)
    if not lenient:
        _check_parts(train, test, validation, settings)
    if validation is None:
        train, validation = _split(train, settings)
    score, solver = lookup_score(settings.score), (settings.max_iterations, settings.tolerance)
    strength, start, chosen = _choose_strength(train, validation, score, solver)
    both = LabeledFeatures(*map(np.concatenate, zip(train, validation, strict=True)))
    known = find_classes(both.label)
    regression = LogisticRegression(both.features, _place(both.label, known), len(known), *solver)
    # what was fitted to fewer classes is no place to start from
    same = np.array_equal(known, find_classes(train.label))
    scores = regression.fit(strength, start if same else None).scores(test.features)
    classes = np.union1d(known, find_classes(test.label)) if lenient else known
    every = np.full((len(scores), len(classes)), -np.inf, scores.dtype)
    every[:, np.searchsorted(classes, known)] = scores
    name, label = settings.score, _place(test.label, classes)
    numbers = {name: score(every, label), f"validation_{name}": chosen, "strength": strength}
    return Probe(numbers, every, label, classes)


def _choose_strength(
    train: LabeledFeatures, validation: LabeledFeatures, score: Score, solver: tuple[int, float]
) -> tuple[float, LinearClassifier, float]:
    """Chooses the strength of regularization by the validation images of classes with training.

    Those of other classes are wrong with any strength. `solver` is iterations and tolerance.
    Returns the strength, its classifier, and the score of that.
    """
    known = find_classes(train.label)
    if validation.label.ndim == 1:
        taken = np.isin(validation.label, known)
        if not taken.any():
            raise UserError("linear_probe: no class has both training and validation images")
        validation = LabeledFeatures(*(x[taken] for x in validation))
    label = _place(validation.label, known)
    regression = LogisticRegression(train.features, _place(train.label, known), len(known), *solver)
    strength, found = search_strength(
        regression.fit, lambda found: rate(score, found.scores(validation.features), label)
    )
    return strength, found, score(found.scores(validation.features), label)


def _check_parts(
    train: LabeledFeatures,
    test: LabeledFeatures,
    validation: LabeledFeatures | None,
    settings: ProbeSettings,
) -> None:
    """Raises a UserError if the sets do not have the same classes."""
    for name, part in (("source", test), ("validation_source", validation)):
        if part is None:
            continue
        where = [f"linear_probe.{name}", "linear_probe.train_source"]
        check_classes(train.label, part.label, *where)
        if settings.score == "map_11_point":  # which needs examples of a class
            check_classes(part.label, train.label, *reversed(where))


def _split(
    train: LabeledFeatures, settings: ProbeSettings
) -> tuple[LabeledFeatures, LabeledFeatures]:
    """Takes a fraction of each class from the training set for validation.

    An example with several labels counts toward the rarest of its classes.
    """
    fraction = settings.validation_fraction
    label = rarest_classes(train.label) if settings.several_labels else train.label
    place, size = shuffle_in_classes(label, settings.seed)
    # Rounded up, so that a class keeps at least one example to fit on.
    chosen = place >= np.ceil(size * (1 - fraction))
    if not chosen.any():
        raise UserError(
            f"linear_probe.train_source: no class has enough examples to take a fraction of "
            f"{fraction} for validation; give validation_source or a larger one"
        )
    parts = [LabeledFeatures(*(x[mask] for x in train)) for mask in (~chosen, chosen)]
    if settings.several_labels:
        kept, taken = (find_classes(part.label) for part in parts)
        apart = np.setxor1d(kept, taken)
        if len(apart):
            raise UserError(
                f"linear_probe.train_source: class {apart[0]} has examples on one side only of "
                f"a split for validation, and needs some on both; give validation_source, or "
                "another validation_fraction or seed"
            )
    return parts[0], parts[1]


def _place(label: np.ndarray, classes: Int[np.ndarray, "c"]) -> np.ndarray:
    """Renumbers the classes of labels of either form consecutively, given those with examples."""
    return np.searchsorted(classes, label) if label.ndim == 1 else label[:, classes]


class LinearProbe(ImageEvaluator):
    """Score of a logistic regression on frozen features, by CLIP's protocol (appendix A.3).

    The strength of regularization is searched on a validation set; the final classifier is fitted
    on the training and validation sets together and scored once. Features are not standardized.

    With the score "map_11_point" (VOC2007; MLCD, Table 11) an example has any number of labels, and
    one without labels is a negative for every class. MLCD does not say how several are fitted: here
    each class is separated from the rest by a regression of its own, and all share one strength.

    Args:
      source: the test set: examples with an image and a label, or several labels.
      train_source: labeled examples to fit on.
      validation_source: labeled examples for choosing the strength; None takes a fraction of each
        class of `train_source`.
      validation_fraction: the fraction to take.
      what: "features" of the image tower before projection, or "embedding".
      score: "accuracy", "mean_per_class", "mean_top1_top5", "roc_auc", "map_11_point" or
        "real_accuracy".
      max_iterations: iterations of L-BFGS.
      tolerance: length of the gradient, relative to the loss, that counts as zero.
      seed: seed of the split.

    Raises:
      ValueError: a value is wrong, or a source names a class that `train_source` lacks.
    """

    place = "linear_probe"

    @classmethod
    def needs(cls, settings: Node) -> tuple[str, ...]:
        """Returns the methods of an objective that it calls."""
        return (VERBS[check_what(settings.get("what") or "features")],)

    def __init__(
        self,
        source: Source,
        transform: str,
        train_source: Source,
        validation_source: Source | None = None,
        validation_fraction: float = 0.2,
        what: str = "features",
        score: str = "accuracy",
        max_iterations: int = 1000,
        tolerance: float = TOLERANCE,
        seed: int = 0,
        max_broken_fraction: float = 0.01,
    ):
        place = "linear_probe.train_source"
        source = join_sources(source, train_source, "linear_probe.source", place)
        super().__init__(source, transform, max_broken_fraction)
        self.validation_source = validation_source and join_sources(
            validation_source, train_source, "linear_probe.validation_source", place
        )
        self.train_source, self.what = train_source, check_what(what)
        self.settings = ProbeSettings(score, validation_fraction, max_iterations, tolerance, seed)

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of the numbers it returns."""
        return self.settings.score, f"validation_{self.settings.score}", "strength"

    def __call__(self, embedder: Embedder) -> dict[str, float]:
        """Fits the probe and returns the numbers of `Probe`."""

        def read(field: str) -> LabeledFeatures:
            several = {"several_labels": self.settings.several_labels}
            return self.read_features(embedder, field, self.what, **several)[self.what]

        train, test = read("train_source"), read("source")
        validation = None if self.validation_source is None else read("validation_source")
        return fit_probe(train, test, validation, self.settings).numbers
