"""Few-shot classification by tuning the text encoder that names classes (iCLIP §4.4, Fig. 4)."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from big_align.core.errors import UserError
from big_align.core.types import Params
from big_align.data.derived.relabeled_source import choose_classes, join_labels
from big_align.data.examples import Source
from big_align.data.labels.prompts import fill_class_templates
from big_align.data.text.tokenizers import Tokenizer
from big_align.evaluators.classifiers.cosine_regression import CosineClassifier
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.evaluator import ImageEvaluator
from big_align.evaluators.features import LabeledFeatures
from big_align.evaluators.few_shot import Sets, measure_shots, number_classes
from big_align.evaluators.linear_probe import rate
from big_align.evaluators.scores import accuracy
from big_align.evaluators.zero_shot import check_named, embed_classes, warn_of_alike
from big_align.parallel.batches import place_batch, process_rows
from big_align.parallel.meshes import replicated

TEXT_SIDE = ("text", "project_text")
"""The text encoder's parameters within those of a dual encoder."""


@dataclasses.dataclass(frozen=True)
class TextTuning:
    """How a text encoder is tuned; the paper does not specify it.

    Attributes:
      temperature: what cosines are divided by.
      steps: steps of Adam, each with all images and all class texts.
      rates: learning rates to try, each from the initial parameters.
      looks: number of evaluations on the held-out images during these steps.
    """

    temperature: float = 0.01
    steps: int = 40
    rates: tuple[float, ...] = (1e-5, 1e-4)
    looks: int = 4

    def __post_init__(self):
        if self.temperature <= 0 or not self.rates or min(self.rates) <= 0:
            raise ValueError(
                f"temperature = {self.temperature} and rates = {self.rates} must be above 0"
            )
        if self.steps < 1 or not 1 <= self.looks <= self.steps:
            raise ValueError(
                f"steps = {self.steps} must be at least 1 and looks = {self.looks} between 1 and it"
            )


TUNING = TextTuning()


class ClassEmbeddings:
    """Embeddings of classes as a function of the text encoder's parameters.

    The weights of the embedder stay unchanged. Each class has one text or several.
    """

    def __init__(self, embedder: Embedder, tokenizer: Tokenizer, texts: Sequence[Sequence[str]]):
        self._embed, params, state = embedder.text_function()
        own = params.get("model", {})
        self.start = {name: own[name] for name in TEXT_SIDE if name in own}
        if "text" not in self.start:
            raise UserError("few_shot_text: the model has no text encoder to tune")
        rest = {**params, "model": {k: v for k, v in own.items() if k not in self.start}}
        text, mask = tokenizer([text for group in texts for text in group])
        size = len(text) + -len(text) % embedder.mesh.size
        group = np.repeat(np.arange(len(texts)), [len(group) for group in texts])
        # Padding repeats the last text, and belongs to no class.
        picked = np.minimum(np.arange(size), len(text) - 1)
        self._count = len(texts)
        self._group = np.concatenate([group, np.full(size - len(text), self._count)])
        rows = picked[process_rows(embedder.mesh, size)]
        fields = {"text": text[rows], "text_mask": mask[rows], "mask": np.ones(len(rows), bool)}
        self._constants = rest, state, place_batch(fields, embedder.mesh)
        self._compute = jax.jit(self._trace, out_shardings=replicated(embedder.mesh))
        self._adam = optax.scale_by_adam()
        self.begin = jax.jit(self._adam.init)
        self._compiled_step = jax.jit(self._step)

    def _trace(
        self, tuned: Params, rest: Params, state: dict, batch: dict
    ) -> Float[jax.Array, "c d"]:
        """Embeds each class as the mean over its texts, scaled back to unit length."""
        params = {**rest, "model": {**rest["model"], **tuned}}
        ztxt = self._embed(params, state, batch)
        total = jnp.zeros((self._count, ztxt.shape[1])).at[self._group].add(ztxt, mode="drop")
        norm = jnp.linalg.norm(total, axis=1, keepdims=True)
        return total / jnp.maximum(norm, 1e-12)

    def __call__(self, tuned: Params) -> Float[np.ndarray, "c d"]:
        """Returns the embeddings, on every process."""
        return np.asarray(self._compute(tuned, *self._constants))

    def step(
        self, tuned: Params, moments: Any, fitted: LabeledFeatures, scale: float, rate: float
    ) -> tuple[Params, Any]:
        """Takes a step of Adam that lowers the cross-entropy of cosines times a scale.

        The model's parameters are `start`, and Adam's moments those that `begin(tuned)` makes. What
        is fitted are embeddings of images, with the numbers of their classes.
        """
        numbers = np.float32(scale), np.float32(rate)
        return self._compiled_step(tuned, moments, *fitted, *numbers, self._constants)

    def _step(self, tuned, moments, features, label, scale, rate, constants):
        def measure(tuned: Params) -> Float[jax.Array, ""]:
            logits = scale * features @ self._trace(tuned, *constants).T
            return optax.softmax_cross_entropy_with_integer_labels(logits, label).mean()

        updates, moments = self._adam.update(jax.grad(measure)(tuned), moments)
        return jax.tree.map(lambda x, change: x - rate * change, tuned, updates), moments


def tune(
    classes: ClassEmbeddings, fitted: LabeledFeatures, held_out: LabeledFeatures, tuning: TextTuning
) -> Float[np.ndarray, "c d"]:
    """Tunes a text encoder to name images whose embeddings are fixed; returns those of the classes.

    The loss is the cross-entropy of cosines over a temperature. The result is whichever of the
    evaluated states, including the start, names the held-out images best.
    """

    def judge(ztxt: Float[np.ndarray, "c d"]) -> tuple[float, float]:
        scores = held_out.features @ ztxt.T / tuning.temperature
        return rate(accuracy, scores, held_out.label)

    best = classes(classes.start)
    score = judge(best)
    looks = {round(look * tuning.steps / tuning.looks) for look in range(1, tuning.looks + 1)}
    for learning_rate in tuning.rates:
        tuned, moments = classes.start, classes.begin(classes.start)
        for number in range(1, tuning.steps + 1):
            given = fitted, 1 / tuning.temperature, learning_rate
            tuned, moments = classes.step(tuned, moments, *given)
            if number in looks:
                ztxt = classes(tuned)
                if (now := judge(ztxt)) > score:
                    best, score = ztxt, now
    return best


def measure_tuning(
    sets: Sets, classes: ClassEmbeddings, tuning: TextTuning, shots: tuple[int, ...], draws: int
) -> dict[str, float]:
    """Measures class texts before and after their encoder is tuned on images of each class.

    The sets are embeddings of the images to draw from and to test on, with the numbers of
    `classes`. Accuracies and their standard deviations have the names that `list_tuned` returns.
    """
    begin = CosineClassifier(classes(classes.start), tuning.temperature)
    results = {"text_encoder_0shot": accuracy(begin.scores(sets[1].features), sets[1].label)}

    def fit(fitted: LabeledFeatures, held_out: LabeledFeatures) -> CosineClassifier:
        return CosineClassifier(tune(classes, fitted, held_out, tuning), tuning.temperature)

    return results | measure_shots("text_encoder", fit, sets, shots, draws)


def list_tuned(shots: tuple[int, ...]) -> tuple[str, ...]:
    """Returns the names of what `measure_tuning` measures."""
    each = [f"text_encoder_{count}shot" for count in shots]
    return "text_encoder_0shot", *each, *(f"{name}_std" for name in each)


class FewShotText(ImageEvaluator):
    """Accuracy after tuning the text encoder on 1 to 16 images per class (iCLIP §4.4, Fig. 4).

    The image encoder is frozen, and the classifier's weights are the embeddings of the class texts.
    `text_encoder_0shot` is the starting point. Learning rate and steps are chosen in every draw on
    further images: as many per class as there are shots, but at most 4.

    Args:
      source: the test set: examples with an image and a label.
      train_source: labeled examples to draw from.
      names: class names in the order of their labels, or a class list, or `source` for the
        source's own names.
      templates: texts with {} in place of the name, and perhaps {description}; None for those of
        the class list, or else "a photo of a {}.". All are encoded in every step.
      shots: images per class.
      draws: number of draws (Fig. 4: 3).
      tuning: how the text encoder is tuned.

    Raises:
      ValueError: a value is out of range, the class list cannot be read, or a source names
        a class that it lacks.
    """

    place = "few_shot_text"
    needed = ("embed_image", "embed_text")

    def __init__(
        self,
        source: Source,
        transform: str,
        tokenizer: Tokenizer,
        train_source: Source,
        names: tuple[str, ...] | str,
        templates: tuple[str, ...] | None = None,
        shots: tuple[int, ...] = (1, 2, 4, 8, 16),
        draws: int = 3,
        tuning: TextTuning = TUNING,
        max_broken_fraction: float = 0.01,
    ):
        if not shots or min(shots) < 1 or draws < 1:
            raise ValueError(f"shots = {shots} and draws = {draws} must be numbers from 1 on")
        classes = choose_classes(names, train_source)
        source = join_labels(source, classes, "few_shot_text.source")
        super().__init__(source, transform, max_broken_fraction)
        self.train_source = join_labels(train_source, classes, "few_shot_text.train_source")
        self.tokenizer = tokenizer
        self.texts = fill_class_templates(classes, templates)
        self.shots, self.draws, self.tuning = shots, draws, tuning

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of the numbers it returns."""
        return list_tuned(self.shots)

    def __call__(self, embedder: Embedder) -> dict[str, float]:
        """Draws, tunes and returns the accuracies; the model is left unchanged."""
        train, test = (
            self.read_features(embedder, field, "embedding")["embedding"]
            for field in ("train_source", "source")
        )
        (train, test), numbers = number_classes(train, test)
        check_named(numbers, len(self.texts), "few_shot_text.train_source")
        texts = [self.texts[number] for number in numbers]
        begin = embed_classes(embedder, self.tokenizer, texts)
        warn_of_alike(begin, texts, self.tokenizer, "few_shot_text")
        classes = ClassEmbeddings(embedder, self.tokenizer, texts)
        return measure_tuning((train, test), classes, self.tuning, self.shots, self.draws)
