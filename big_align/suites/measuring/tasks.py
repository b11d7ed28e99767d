"""Measures what the evaluators measure, with existing embeddings."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from absl import logging
from jaxtyping import Bool, Float, Int

from big_align.core.errors import UserError, check_known
from big_align.core.ties import TOLERANCE, number_equal
from big_align.data.derived.relabeled_source import join_labels
from big_align.data.examples import Source
from big_align.data.labels.classes import ClassList
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.evaluators.exhibits.retrieval import Pairs
from big_align.evaluators.features import LabeledFeatures, mark_classes, take_readable
from big_align.evaluators.few_shot import (
    choose_shots,
    measure_linear,
    measure_ridge,
    measure_texts,
    number_classes,
)
from big_align.evaluators.knn import measure_neighbors
from big_align.evaluators.linear_probe import ProbeSettings, fit_probe
from big_align.evaluators.retrieval import DIRECTIONS, measure_recalls
from big_align.evaluators.scores import OF_SEVERAL_LABELS
from big_align.evaluators.text_tuning import TUNING, ClassEmbeddings, list_tuned, measure_tuning
from big_align.evaluators.zero_shot import check_named
from big_align.suites.measuring.embeddings import EmbeddedImages
from big_align.suites.measuring.outcomes import Outcome, describe_scores
from big_align.suites.measuring.plans import EQUAL_CLASSES

TEMPERATURE = 0.01
"""What cosines are divided by if the model does not specify it: CLIP's value after training."""
KS = (1, 5, 10)
"""Cut-offs for retrieval and nearest neighbors."""


@dataclasses.dataclass(frozen=True)
class TaskSettings:
    """How tasks are measured.

    Classes of one text, such as the two that CLIP's list of ImageNet calls "missile", are "wrong",
    for nothing tells them apart; or the "first" counts, as an argmax takes them, and with it CLIP's
    paper and those that use its list.
    """

    shots: tuple[int, ...] = (1, 2, 4, 8, 16)  # images per class for few shots
    draws: int = 3  # of these images
    seed: int = 0  # of the validation split of `linear_probe`
    equal_classes: str = EQUAL_CLASSES[0]

    def __post_init__(self):
        check_known("equal_classes", self.equal_classes, EQUAL_CLASSES)
        if not self.shots or min(self.shots) < 1 or self.draws < 1:
            raise UserError(
                f"shots = {self.shots} must be one or more numbers from 1 on, and draws = "
                f"{self.draws} at least 1"
            )


class LabeledSplit(NamedTuple):
    """A split of a data set with classes, embedded."""

    name: str  # for error messages, as in "cifar10 test"
    source: Source
    images: EmbeddedImages
    label: Int[np.ndarray, "n"] | Bool[np.ndarray, "n c"]  # of each, or which it has

    def take(self, what: str) -> LabeledFeatures:
        """Returns the readable images, with their "features" or "embedding"."""
        rows = getattr(self.images, what)
        return take_readable(self.source, rows, self.label, self.images.readable, what, self.name)


def read_labels(
    source: Source, classes: ClassList, several: bool, max_broken_fraction: float
) -> Int[np.ndarray, "n"] | Bool[np.ndarray, "n c"]:
    """Reads the labels of a source, which are indices into the class list."""
    source = join_labels(source, classes, "the data set")
    with EvalLoader(source, "resize(1)", 1, max_broken_fraction=max_broken_fraction) as loader:
        if not several:
            return loader.labels()
        sets = loader.label_sets()
    largest = max((max(labels, default=-1) for labels in sets), default=-1)
    if largest >= len(classes):
        raise UserError(f"label {largest} is not in the {len(classes)} class names")
    return mark_classes(sets, len(classes))


def measure_zero_shot(
    test: LabeledSplit,
    classes: ClassList,
    ztxt: Float[np.ndarray, "c d"],
    metric: str,
    temperature: float | None,
    equal_classes: str = EQUAL_CLASSES[0],
) -> Outcome:
    """Measures how well images are classified by the nearest class text.

    Without a temperature probabilities are those by `TEMPERATURE`.
    """
    taken = test.take("embedding")
    if taken.label.ndim == 1:
        check_named(taken.label, len(ztxt), f"{test.name}, zero_shot")
    cosines = taken.features @ ztxt.T
    later = number_equal(ztxt)
    if equal_classes == "first":
        cosines -= 5 * TOLERANCE * later  # no more than it takes to be no tie
    given = classes.names, metric, temperature or TEMPERATURE
    outcome = describe_scores(cosines, taken.label, *given)
    alike = int((later > 0).sum())
    return outcome._replace(details=outcome.details | {"equal_classes": alike})


def measure_linear_probe(
    test: LabeledSplit,
    train: LabeledSplit,
    validation: LabeledSplit | None,
    classes: ClassList,
    metric: str,
    settings: TaskSettings,
) -> Outcome:
    """Measures a logistic regression on features (CLIP, appendix A.3).

    Labels are bound to the classes by name, so a class without training images is one that the data
    set has drawn none of, and its test images count as wrong.
    """
    taken, fitted = test.take("features"), train.take("features")
    chosen = None if validation is None else validation.take("features")
    given = ProbeSettings(metric, seed=settings.seed, few_examples=True)
    probe = fit_probe(fitted, taken, chosen, given)
    names = [classes.names[c] for c in probe.classes.tolist()]
    outcome = describe_scores(probe.scores, probe.label, names, metric)
    numbers = {f"lp_{name}": number for name, number in outcome.numbers.items()}
    more = {"lp_validation": probe.numbers[f"validation_{metric}"]}
    return outcome._replace(numbers=numbers | more | {"lp_strength": probe.numbers["strength"]})


def measure_few_shot(
    test: LabeledSplit,
    drawn: Sequence[LabeledSplit],
    ztxt: Float[np.ndarray, "c d"] | None,
    settings: TaskSettings,
) -> Outcome:
    """Measures few-shot classifiers; the score is that of a linear probe with the most shots.

    Numbers of shots that a class has too few images for are left out, unless all of them are.
    Without embeddings of the classes there are linear probes only.
    """
    sets, classes = number_classes(_join(drawn, "features"), test.take("features"))
    shots = _choose_shots(sets[0], settings, f"{drawn[0].name}, few_shot")
    given = shots, settings.draws
    numbers = measure_linear(sets, *given) | measure_ridge(sets, *given)
    if ztxt is not None:
        check_named(classes, len(ztxt), f"{drawn[0].name}, few_shot")
        sets, _ = number_classes(_join(drawn, "embedding"), test.take("embedding"))
        numbers |= measure_texts(sets, ztxt[classes], TEMPERATURE, *given)
    metric = f"linear_{max(shots)}shot"
    return Outcome(numbers, numbers[metric], {}, metric=metric)


def measure_few_shot_text(
    test: LabeledSplit,
    drawn: Sequence[LabeledSplit],
    texts: Sequence[Sequence[str]],
    make_classes: Callable[[Sequence[Sequence[str]]], ClassEmbeddings],
    settings: TaskSettings,
) -> Outcome:
    """Measures class texts whose encoder is tuned; the score is that with the most shots.

    `make_classes` embeds classes by their texts, as a function of the text encoder.
    """
    sets, classes = number_classes(_join(drawn, "embedding"), test.take("embedding"))
    check_named(classes, len(texts), f"{drawn[0].name}, few_shot_text")
    shots = _choose_shots(sets[0], settings, f"{drawn[0].name}, few_shot_text")
    embedded = make_classes([texts[number] for number in classes])
    numbers = measure_tuning(sets, embedded, TUNING, shots, settings.draws)
    metric = f"text_encoder_{max(shots)}shot"
    return Outcome(numbers, numbers[metric], {}, metric=metric)


def _choose_shots(drawn: LabeledFeatures, settings: TaskSettings, where: str) -> tuple[int, ...]:
    """Returns the numbers of shots that all classes have images for; all if there is none."""
    shots = choose_shots(drawn.label, settings.shots) or settings.shots
    if left_out := [str(count) for count in settings.shots if count not in shots]:
        told = "%s: %s shots are left out: a class has too few images for them"
        logging.warning(told, where, ", ".join(left_out))
    return shots


def _join(splits: Sequence[LabeledSplit], what: str) -> LabeledFeatures:
    """Returns the readable images of several splits, one after the other."""
    parts = [split.take(what) for split in splits]
    return LabeledFeatures(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def measure_knn(test: LabeledSplit, train: LabeledSplit) -> Outcome:
    """Measures recall of the class among the nearest training images (ALIGN §6)."""
    found = measure_neighbors(test.take("embedding"), train.take("embedding"), KS)
    numbers = {f"knn_{name}": number for name, number in found.items()}
    return Outcome(numbers, found["r1"], {}, metric="knn_r1")


def measure_retrieval(pairs: Pairs, folds: int) -> Outcome:
    """Measures recalls in both directions, averaged over folds; the mean of all is the score."""
    parts = [measure_recalls(part, KS) for part in cut_pairs(pairs, folds)]
    mean = {name: float(np.mean([part[name] for part in parts])) for name in parts[0]}
    columns = dict(zip(DIRECTIONS, ("text_retrieval", "image_retrieval"), strict=True))
    numbers = {
        f"{columns[name]}_recall@{k}": mean[f"{name}_r{k}"]
        for name in reversed(DIRECTIONS)
        for k in KS
    }
    numbers["mean_recall"] = float(np.mean(list(mean.values())))
    details = {"folds": parts} if folds > 1 else {}
    return Outcome(numbers, numbers["mean_recall"], details)


def list_numbers(task: str, metric: str, count: int, settings: TaskSettings) -> tuple[str, ...]:
    """Returns the names of the numbers that a task measures, if there are `count` classes."""
    if task == "retrieval":
        sides = [f"{side}_retrieval_recall@{k}" for side in ("image", "text") for k in KS]
        return *sides, "mean_recall"
    if task == "knn":
        return tuple(f"knn_r{k}" for k in KS)
    if task == "few_shot":
        kinds = ("linear", "ridge", "text")
        each = [f"{kind}_{shots}shot" for kind in kinds for shots in settings.shots]
        return *each, *(f"{name}_std" for name in each), "text_0shot"
    if task == "few_shot_text":
        return list_tuned(settings.shots)
    if metric in OF_SEVERAL_LABELS:
        several = ["mean_average_precision", "map_11_point"]
        names = ["acc1"] if metric == "real_accuracy" else several
    else:
        names = ["acc1", *(["acc5"] if count >= 5 else []), "mean_per_class_recall", "ece"]
        names += [metric] if metric not in ("accuracy", "mean_per_class") else []
    if task == "zero_shot":
        return tuple(names)
    return *(f"lp_{name}" for name in names), "lp_validation", "lp_strength"


def cut_pairs(pairs: Pairs, folds: int) -> list[Pairs]:
    """Cuts images with their captions into parts of equal length, in order."""
    if folds == 1:
        return [pairs]
    if len(pairs.zimg) < folds:
        raise UserError(f"{len(pairs.zimg)} images cannot be cut into {folds} parts")
    parts = []
    for rows in np.array_split(np.arange(len(pairs.zimg)), folds):
        mine = (pairs.owner >= rows[0]) & (pairs.owner <= rows[-1])
        captions = [pairs.captions[n] for n in np.flatnonzero(mine).tolist()]
        owner = pairs.owner[mine] - rows[0]
        parts.append(Pairs(pairs.zimg[rows], pairs.ztxt[mine], captions, owner, pairs.number[rows]))
    return parts
