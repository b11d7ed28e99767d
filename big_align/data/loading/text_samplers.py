"""The texts and the label of an example: its captions, templates with its class, or no text."""

import abc
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Int32

from big_align.core.errors import FieldError, UserError, check_at_least
from big_align.data import boundary, examples
from big_align.data.examples import BrokenExample, Example, Source
from big_align.data.labels.classes import ClassList
from big_align.data.labels.label_names import match_names
from big_align.data.labels.prompts import choose_templates
from big_align.data.labels.templates import fill_templates
from big_align.data.loading.shuffle import PositionRandom
from big_align.data.shard_offsets import ShardOffsets
from big_align.data.text.caption_checks import find_caption_fault
from big_align.data.text.shortening import Shortener
from big_align.data.text.temperature import share_by_temperature
from big_align.data.text.tokenizers import Tokenizer
from big_align.data.workers.batch_memory import Row

CHECKED_FIRST = 65_536  # examples whose labels are looked at before training starts


class TextSampler(abc.ABC):
    """Draws `count` texts of an example, returns its label, and makes ids from texts.

    Attributes:
      row: the shape and the type of `text` and `text_mask` in a batch.
      make_ids: makes ids of texts, and what is kept of long ones.
      needs_labels: whether an example with a wrong label is a user error; otherwise it is a broken
        example.
    """

    needs_labels = False

    def __init__(self, tokenizer: Tokenizer, count: int):
        check_at_least(0, captions_per_image=count)
        self.make_ids, self._count = Shortener(tokenizer), count
        shape = text_shape_of(tokenizer.length, count)
        self.row: Row = {"text": (shape, np.int32), "text_mask": (shape, bool)}

    def check(self, source: Source) -> None:  # noqa: B027 - most have nothing to check
        """Raises UserError if a source lacks captions that are drawn, or has other classes."""

    @abc.abstractmethod
    def draw(self, example: Example, name: str, rng: PositionRandom) -> tuple[list[str], int]:
        """Returns different texts, and the label in the batch; BrokenExample if there is none."""

    def tokenize(
        self, texts: list[list[str]], rngs: Sequence[PositionRandom] = ()
    ) -> tuple[Int32[np.ndarray, "..."], Bool[np.ndarray, "..."]]:
        """Makes `text` and `text_mask` of n examples, [n l] with one text each, else [n k l].

        The mask of an absent text is False throughout. What is drawn of long texts takes the
        numbers of each example from where its texts left off, and leaves them to its image too.
        """
        gaps = [self._count - len(row) for row in texts]
        missing = [n >= len(row) for row in texts for n in range(self._count)]
        padded = [row + [""] * gap for row, gap in zip(texts, gaps, strict=True)]
        draws = [rng.split(n) for rng in rngs for n in range(self._count) if self.make_ids.draws]
        text, text_mask = self.make_ids([text for row in padded for text in row], draws)
        text_mask[np.array(missing, bool)] = False
        shape = (len(texts), *self.row["text"][0])
        return text.reshape(shape), text_mask.reshape(shape)


class CaptionSampler(TextSampler):
    """Draws captions.

    Args:
      tokenizer: makes ids from captions, and says which of them are real.
      captions_per_image: different captions per visit; with k > 1 `text` is int32 [b k l] and
        `text_mask` bool [b k l], and if an example has fewer, the mask of the rest is False.
      captions_used: how many of an example's captions, the first ones, are drawn from; None for
        all.
      keep_label: whether the batch has the label of the source, or -1: in a mixture, labels without
        a class list could mean something else in another part. An example with several labels is
        broken either way.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        captions_per_image: int = 1,
        captions_used: int | None = None,
        keep_label: bool = True,
    ):
        check_at_least(1, captions_per_image=captions_per_image)
        check_at_least(captions_per_image, captions_used=captions_used)
        super().__init__(tokenizer, captions_per_image)
        self._used, self._keep_label = captions_used, keep_label

    def check(self, source: Source) -> None:
        fault = find_caption_fault(source)
        if fault and source.class_names:
            raise FieldError(
                f"{fault}, but it has {len(source.class_names)} classes, "
                f"{source.class_names[0]!r} the first. If captions were meant, images with "
                "metadata.jsonl or metadata.csv are read by the source imagefolder, and those with "
                "a text file each by the source files; to train on classes, with unicl or another "
                "objective that has them",
                classes="source",
            )
        if fault:
            raise UserError(
                f"{fault}. Captions are wanted: let the source read them (its field `caption`), "
                "name a class list (`classes`), or train without texts (captions_per_image=0)"
            )

    def draw(self, example: Example, name: str, rng: PositionRandom) -> tuple[list[str], int]:
        if not example.captions:
            raise BrokenExample("it has no caption")
        drawn = self._draw(example.captions, rng)
        label = example.label  # raises if there are several labels, kept or not
        return drawn, label if self._keep_label else examples.NO_LABEL

    def _draw(self, captions: Sequence[str], rng: PositionRandom) -> list[str]:
        return _draw_different(captions[: self._used], self._count, rng)


class LanguageSampler(CaptionSampler):
    """Draws the language of each caption by temperature, and then one of its captions.

    The languages of an example are drawn with p_l ~ n_l^(1/T), normalized over those that it has:
    with T = 1, or None, in proportion to their captions in all the data (`count_languages`), and
    with inf all alike. A language that was not counted is drawn like the rarest one. Captions of a
    language are equally likely; `captions_used` counts those in each.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        counts: Mapping[str, int],
        language_temperature: float | None = None,
        captions_per_image: int = 1,
        captions_used: int | None = None,
        keep_label: bool = True,
    ):
        super().__init__(tokenizer, captions_per_image, captions_used, keep_label)
        if not counts:
            raise UserError("there are no languages to draw from")
        temperature = 1.0 if language_temperature is None else language_temperature
        self._shares = share_by_temperature(counts, temperature)
        self._rarest = min(self._shares.values())

    def _draw(self, captions: Sequence[str], rng: PositionRandom) -> list[str]:
        left: dict[str, list[str]] = {}
        for caption in captions:
            left.setdefault(examples.language_of(caption), []).append(caption)
        left = {language: texts[: self._used] for language, texts in left.items()}
        drawn: list[str] = []
        while left and len(drawn) < self._count:
            language = self._draw_language(list(left), rng)
            texts = left[language]
            drawn.append(texts.pop(int(rng.random() * len(texts))))
            if not texts:
                del left[language]
        return drawn

    def _draw_language(self, languages: Sequence[str], rng: PositionRandom) -> str:
        shares = [self._shares.get(language, self._rarest) for language in languages]
        place = rng.random() * sum(shares)
        for language, share in zip(languages, shares, strict=True):
            place -= share
            if place < 0:
                return language
        return languages[-1]


class NoTextSampler(TextSampler):
    """Draws nothing: examples need no caption, and their label counts if they have just one."""

    def __init__(self, tokenizer: Tokenizer, keep_label: bool = True):
        super().__init__(tokenizer, 0)
        self._keep_label = keep_label

    def draw(self, example: Example, name: str, rng: PositionRandom) -> tuple[list[str], int]:
        single = self._keep_label and len(example.labels) == 1
        return [], example.labels[0] if single else examples.NO_LABEL


class TemplateSampler(TextSampler):
    """Draws templates and puts the name of the class into them; captions are not used.

    The shapes are as in `CaptionSampler`, and the templates as in `choose_templates`. The offset is
    added to the labels 0 to n - 1 of the class list.
    """

    needs_labels = True

    def __init__(
        self,
        tokenizer: Tokenizer,
        classes: ClassList,
        captions_per_image: int = 1,
        templates: tuple[str, ...] | None = None,
        label_offset: int = 0,
    ):
        super().__init__(tokenizer, captions_per_image)
        check_at_least(0, label_offset=label_offset)
        self._classes = classes
        self._templates = choose_templates(classes, templates)
        self._label_offset = label_offset

    def check(self, source: Source) -> None:
        where, names = f"the source of {source.shard_name(0)}", source.class_names or ()
        for label, place in enumerate(match_names(names, self._classes, where)):
            if label != place:
                raise UserError(
                    f"{where}: label {label} is {names[label]!r}, which is {place} in the class "
                    "list; `join_labels(source, classes)` makes a source with the list's labels"
                )
        check_labels(source, len(self._classes))

    def draw(self, example: Example, name: str, rng: PositionRandom) -> tuple[list[str], int]:
        classes, label = self._classes, example.label
        check_label(name, label, len(classes))
        drawn = _draw_different(self._templates, self._count, rng)
        texts = fill_templates(drawn, classes.names[label], classes.descriptions[label])
        return texts, label + self._label_offset


def _draw_different(texts: Sequence[str], count: int, rng: PositionRandom) -> list[str]:
    """Draws `count` texts, or all in random order if there are no more."""
    left, drawn = list(texts), []
    while left and len(drawn) < count:
        drawn.append(left.pop(int(rng.random() * len(left))))
    return drawn


def check_label(name: str, label: int, num_classes: int) -> None:
    """Raises a UserError that names the example if its label is -1 or not in a class list."""
    if label == examples.NO_LABEL:
        raise UserError(
            f"{name} has no label, and a class list of {num_classes} is set: let the source read "
            "labels (its argument `label`), or leave `classes` out"
        )
    if not 0 <= label < num_classes:
        raise UserError(
            f"{name} has the label {label}, which is not in the class list: its {num_classes} "
            f"classes are the labels 0 to {num_classes - 1}. Mend the label or set `classes` to a "
            "list that has it"
        )


def check_labels(source: Source, num_classes: int) -> None:
    """Checks the labels of examples, spread evenly and without images, but for broken ones."""
    places = ShardOffsets(source.shard_sizes).spread(CHECKED_FIRST)
    for place, texts in boundary.read_many_texts(source, places):
        try:
            if isinstance(texts, BrokenExample):
                raise texts
            label = examples.single_label(texts[1])
        except examples.WrongLabel as error:
            raise UserError(f"{source.name(*place)}: {error}") from error
        except BrokenExample:
            continue
        check_label(source.name(*place), label, num_classes)


def text_shape_of(length: int, captions_per_image: int) -> tuple[int, ...]:
    """Returns the shape of an example's `text`."""
    return (length,) if captions_per_image == 1 else (captions_per_image, length)
