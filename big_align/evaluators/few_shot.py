"""Few-shot classification: linear probes, and class texts tuned on the images (iCLIP §4.4)."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from big_align.core.errors import UserError
from big_align.core.nodes import Node
from big_align.data.derived.relabeled_source import choose_classes, join_labels, join_sources
from big_align.data.examples import Source
from big_align.data.labels.prompts import fill_class_templates
from big_align.data.text.tokenizers import Tokenizer
from big_align.evaluators.classifiers.cosine_regression import CosineClassifier, CosineRegression
from big_align.evaluators.classifiers.logistic_regression import LogisticRegression
from big_align.evaluators.classifiers.ridge_regression import RidgeClassifier
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.evaluator import ImageEvaluator
from big_align.evaluators.features import (
    LabeledFeatures,
    check_classes,
    check_what,
    shuffle_in_classes,
)
from big_align.evaluators.linear_probe import rate, search_strength
from big_align.evaluators.scores import accuracy
from big_align.evaluators.zero_shot import check_named, embed_classes, warn_of_alike

PENALTY = 2.0**10
"""Penalty of least squares, as in big_vision's `fewshot_lsr`, whatever the number of images."""

MAX_HELD_OUT = 4
"""Up to this many images per class, but no more than the shots, choose the regularization."""


def draw_shots(
    label: Int[np.ndarray, "n"], shots: int, draw: int
) -> tuple[Bool[np.ndarray, "n"], Bool[np.ndarray, "n"]]:
    """Draws images of each class to fit on, and others for choosing the regularization.

    Within a draw, the images of fewer shots are a subset of those of more; draws are independent,
    and the same number draws the same images.

    Raises:
      UserError: a class has too few images.
    """
    held_out = min(shots, MAX_HELD_OUT)
    place, size = shuffle_in_classes(label, seed=0, draw=draw)
    if size.min() < shots + held_out:
        raise UserError(
            f"few_shot.train_source: class {label[size.argmin()]} has {size.min()} images; "
            f"{shots} shots need {shots + held_out}, {held_out} of them to choose the "
            f"regularization: leave {shots} out of shots, or the class out of the source"
        )
    return place < shots, place >= size - held_out


def choose_shots(label: Int[np.ndarray, "n"], shots: tuple[int, ...]) -> tuple[int, ...]:
    """Returns those numbers of shots that `draw_shots` can draw of every class."""
    _, size = np.unique(label, return_counts=True)
    return tuple(count for count in shots if count + min(count, MAX_HELD_OUT) <= size.min())


Sets = tuple[LabeledFeatures, LabeledFeatures]
"""A training set and a test set."""


def number_classes(
    train: LabeledFeatures, test: LabeledFeatures
) -> tuple[Sets, Int[np.ndarray, "c"]]:
    """Renumbers the classes of a training set consecutively, in both sets.

    Returns the sets, and the original classes by new number.

    Raises:
      UserError: a class of the test set has no example in the training set.
    """
    check_classes(train.label, test.label, "few_shot.source", "few_shot.train_source")
    classes = np.unique(train.label)
    train, test = (x._replace(label=np.searchsorted(classes, x.label)) for x in (train, test))
    return (train, test), classes


def measure_linear(sets: Sets, shots: tuple[int, ...], draws: int) -> dict[str, float]:
    """Measures linear probes, as `measure_shots` does."""
    count = 1 + int(sets[0].label.max())

    def fit(fitted: LabeledFeatures, held_out: LabeledFeatures) -> Any:
        return _choose_strength(LogisticRegression(*fitted, count), held_out)

    return measure_shots("linear", fit, sets, shots, draws)


def measure_ridge(sets: Sets, shots: tuple[int, ...], draws: int) -> dict[str, float]:
    """Measures least squares on standardized features, like big_vision's few-shot probe."""
    count = 1 + int(sets[0].label.max())
    return measure_shots(
        "ridge", lambda fitted, _: RidgeClassifier(*fitted, count, PENALTY), sets, shots, draws
    )


def measure_texts(
    sets: Sets,
    ztxt: Float[np.ndarray, "c d"],
    temperature: float,
    shots: tuple[int, ...],
    draws: int,
) -> dict[str, float]:
    """Measures cosine classifiers that start as texts: what `measure_shots` does, and `text_0shot`.

    The sets are embeddings, and `ztxt` those of the classes, by their consecutive numbers.
    """
    test, begin = sets[1], CosineClassifier(ztxt, temperature)
    found = {"text_0shot": accuracy(begin.scores(test.features), test.label)}

    def fit(fitted: LabeledFeatures, held_out: LabeledFeatures) -> Any:
        return _choose_strength(CosineRegression(*fitted, ztxt, temperature), held_out)

    return found | measure_shots("text", fit, sets, shots, draws)


def _choose_strength(regression: Any, held_out: LabeledFeatures) -> Any:
    """Returns the classifier with the strength that is best on the held-out images."""
    _, classifier = search_strength(
        regression.fit,
        lambda found: rate(accuracy, found.scores(held_out.features), held_out.label),
    )
    return classifier


def measure_shots(
    name: str,
    fit: Callable[[LabeledFeatures, LabeledFeatures], Any],
    sets: Sets,
    shots: tuple[int, ...],
    draws: int,
) -> dict[str, float]:
    """Returns accuracies and their standard deviations, as `NAME_4shot` and `NAME_4shot_std`.

    The sets have consecutive class numbers; `fit` makes a classifier from shots and held-out
    images.

    Raises:
      UserError: a class has too few training examples.
    """
    train, test = sets
    draw_shots(train.label, max(shots), 0)  # reports these before anything is fitted
    results = {}
    for count in shots:
        found = []
        for draw in range(draws):
            masks = draw_shots(train.label, count, draw)
            classifier = fit(*(LabeledFeatures(*(x[mask] for x in train)) for mask in masks))
            found.append(accuracy(classifier.scores(test.features), test.label))
        results[f"{name}_{count}shot"] = float(np.mean(found))
        results[f"{name}_{count}shot_std"] = float(np.std(found))
    return results


class FewShot(ImageEvaluator):
    """Accuracy after 1 to 16 images per class, mean and standard deviation over draws.

    `linear_4shot` is a logistic regression on frozen features (CLIP §3.1.5, figure 6).
    `ridge_4shot` is least squares on the same features (big_vision, with `shots` of 1, 5, 10 and
    25). `text_4shot` is a cosine classifier that starts as the texts of the classes. iCLIP (§4.4)
    tunes the text encoder that makes them; here the vectors themselves are tuned, with a penalty on
    leaving the texts, which needs no gradient through the encoder. `text_0shot` is the starting
    point.

    iCLIP does not say how its classifiers are regularized. Here the search of CLIP's linear probes
    (appendix A.3) runs for every draw, on further images: as many per class as there are shots, but
    at most 4.

    Args:
      source: the test set: examples with an image and a label.
      train_source: labeled examples to draw from.
      names: class names in the order of their labels, or a class list, or `source` for the
        source's own names; None for no `text_` numbers.
      shots: images per class.
      draws: number of draws (iCLIP, figure 4: 3).
      what: what the linear probes use: "features" before projection, or "embedding".
      temperature: temperature of the cosine classifier.

    Raises:
      ValueError: a value is unknown or out of range, the class list cannot be read, or a source
        names a class that the list, or else `train_source`, lacks.
    """

    place = "few_shot"

    @classmethod
    def needs(cls, settings: Node) -> tuple[str, ...]:
        """Returns the methods of an objective that it calls."""
        return "image_features", "embed_image", *(("embed_text",) if settings.get("names") else ())

    def __init__(
        self,
        source: Source,
        transform: str,
        tokenizer: Tokenizer,
        train_source: Source,
        names: tuple[str, ...] | str | None = None,
        templates: tuple[str, ...] | None = None,
        shots: tuple[int, ...] = (1, 2, 4, 8, 16),
        draws: int = 3,
        what: str = "features",
        temperature: float = 0.01,
        max_broken_fraction: float = 0.01,
    ):
        if not shots or min(shots) < 1:
            raise ValueError(f"shots = {shots} must be one or more numbers from 1 on")
        if draws < 1 or temperature <= 0:
            raise ValueError(
                f"draws = {draws} must be at least 1 and temperature = {temperature} above 0"
            )
        self.tokenizer = tokenizer
        self.names: tuple[str, ...] = ()
        if names is not None:
            classes = choose_classes(names, train_source)
            source = join_labels(source, classes, "few_shot.source")
            train_source = join_labels(train_source, classes, "few_shot.train_source")
            self.names = classes.names
            self.texts = fill_class_templates(classes, templates)
        else:
            places = "few_shot.source", "few_shot.train_source"
            source = join_sources(source, train_source, *places)
        super().__init__(source, transform, max_broken_fraction)
        self.train_source = train_source
        self.shots, self.draws, self.what = shots, draws, check_what(what)
        self.temperature = temperature

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of the numbers it returns."""
        kinds = ("linear", "ridge", *(("text",) if self.names else ()))
        each = [f"{kind}_{shots}shot" for kind in kinds for shots in self.shots]
        return *(["text_0shot"] if self.names else []), *each, *(f"{name}_std" for name in each)

    def __call__(self, embedder: Embedder) -> dict[str, float]:
        """Draws, fits and returns the accuracies."""
        whats = dict.fromkeys((self.what, *(["embedding"] if self.names else [])))
        train, test = (
            self.read_features(embedder, field, *whats) for field in ("train_source", "source")
        )
        sets, classes = number_classes(train[self.what], test[self.what])
        given = self.shots, self.draws
        results = measure_linear(sets, *given) | measure_ridge(sets, *given)
        if self.names:
            check_named(classes, len(self.names), "few_shot.train_source")
            texts = [self.texts[c] for c in classes]
            ztxt = embed_classes(embedder, self.tokenizer, texts)
            warn_of_alike(ztxt, texts, self.tokenizer, "few_shot")
            sets, _ = number_classes(train["embedding"], test["embedding"])
            results |= measure_texts(sets, ztxt, self.temperature, *given)
        return results
