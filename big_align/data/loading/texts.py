"""The texts that a visit to an example draws: its captions, or templates with its class."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int32

from big_align.data import examples, randomness
from big_align.data.labels import label_check, prompts
from big_align.data.labels.classes import ClassList
from big_align.data.text import tokenizers


@runtime_checkable
class Texts(Protocol):
    """What gives an example its texts."""

    def draw(
        self, example: examples.Example, name: str, rng: randomness.PositionRandom
    ) -> tuple[list[str], int]:
        """Returns different texts, and the label of the example in the batch.

        Args:
          example: as the source has it.
          name: of the example, for messages.
          rng: of its position.

        Raises:
          BrokenExample: there is no text.
          UserError: the label is wrong.
        """


class CaptionTexts:
    """Draws captions.

    Args:
      count: captions of a visit; all where an example has no more.
      used: how many of an example's captions, the first ones, are drawn from; None for all.
    """

    def __init__(self, count: int, used: int | None = None):
        self._count, self._used = count, used

    def draw(
        self, example: examples.Example, name: str, rng: randomness.PositionRandom
    ) -> tuple[list[str], int]:
        """Returns captions and the label."""
        if not example.captions:
            raise examples.BrokenExample("it has no caption")
        return _draw_different(example.captions[: self._used], self._count, rng), example.label


class NoTexts:
    """Draws nothing: examples need no caption, and their label counts if they have one."""

    def draw(
        self, example: examples.Example, name: str, rng: randomness.PositionRandom
    ) -> tuple[list[str], int]:
        """Returns no text, and the label."""
        return [], example.labels[0] if len(example.labels) == 1 else examples.NO_LABEL


class ClassTexts:
    """Draws templates and puts the name of the class into them.

    Args:
      count: texts of a visit; all templates where there are no more.
      classes: the classes of the labels 0 to n - 1.
      templates: texts with one `{}`; None takes those of the list, else "a photo of a {}.".
      describe: puts "NAME, DESCRIPTION" into a template where a class has a description.
      label_offset: is added to the labels.

    Raises:
      ValueError: a template without `{}`, or none.
    """

    def __init__(
        self,
        count: int,
        classes: ClassList,
        templates: tuple[str, ...] | None,
        describe: bool,
        label_offset: int,
    ):
        self._count = count
        self._templates = prompts.choose_templates(classes, templates)
        self._phrases = classes.phrases(describe)
        self._label_offset = label_offset
        prompts.fill_templates(self._phrases[:1], self._templates)  # refuses a wrong template

    def draw(
        self, example: examples.Example, name: str, rng: randomness.PositionRandom
    ) -> tuple[list[str], int]:
        """Returns filled templates and the label with its offset."""
        label_check.check_label(name, example.label, len(self._phrases))
        drawn = _draw_different(self._templates, self._count, rng)
        phrase = self._phrases[example.label]
        texts = [template.replace("{}", phrase) for template in drawn]
        return texts, example.label + self._label_offset


def _draw_different(
    texts: Sequence[str], count: int, rng: randomness.PositionRandom
) -> list[str]:
    """Draws `count` texts, or all in a drawn order where there are no more."""
    left, drawn = list(texts), []
    while left and len(drawn) < count:
        drawn.append(left.pop(int(rng.random() * len(left))))
    return drawn


def text_shape_of(length: int, captions_per_image: int) -> tuple[int, ...]:
    """Returns the shape of an example's `text`."""
    return (length,) if captions_per_image == 1 else (captions_per_image, length)


def tokenize(
    tokenizer: tokenizers.Tokenizer, texts: list[list[str]], count: int
) -> tuple[Int32[np.ndarray, "..."], Bool[np.ndarray, "..."]]:
    """Makes ids and masks of up to `count` texts an example.

    Returns:
      `text` and `text_mask`, [n l], or [n k l] where `count` is k > 1; the mask of a text that is
      not there is False throughout.
    """
    missing = [[False] * len(row) + [True] * (count - len(row)) for row in texts]
    text, text_mask = tokenizer([text for row in texts for text in row + [""] * (count - len(row))])
    text_mask[np.array(missing, bool).reshape(-1)] = False
    shape = (len(texts), *text_shape_of(tokenizer.length, count))
    return text.reshape(shape), text_mask.reshape(shape)
