"""Tokenizers: callables from texts to `text` int32 [n l] and `text_mask` bool [n l].

Each is safe to call from threads and has `vocab_size`, `length` and `fingerprint`, a hash of
everything that determines its ids: a model is evaluated with the tokenizer it was trained with.
Those that do not know every word have `unknown_id`, which stands for what they do not know.
`pieces` shows a reader what ids stand for.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from big_align.core.digests import fingerprint
from big_align.core.errors import UserError, check_at_least
from big_align.core.words import compose, fold_text, is_sign, split_at_spaces, split_signs
from big_align.data.labels.classes import read_classes
from big_align.data.text.clean_texts import clean_for_bert
from big_align.data.text.clip_tokenizer import ClipTokenizer as ClipTokenizer
from big_align.data.text.framed import Frame, FramedTokenizer, Ids
from big_align.data.text.piece_files import read_ids
from big_align.data.text.wordpieces import make_splitter

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PUBLISHED = "python -m big_align.tools.build_vocab makes a vocabulary"


@runtime_checkable
class Tokenizer(Protocol):
    """What turns captions and prompts into ids."""

    vocab_size: int
    length: int
    fingerprint: str

    def __call__(self, texts: Sequence[str]) -> Ids:
        """Returns ids and which of them are real."""


def spell(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Returns the pieces that ids stand for, without marks of the ends of words.

    They are numbers if the tokenizer does not say.
    """
    if not hasattr(tokenizer, "pieces"):
        return [f"<{id}>" for id in ids]
    return [piece.removesuffix("</w>") for piece in tokenizer.pieces(ids)]


class WordTokenizer(FramedTokenizer):
    """Whole words of a closed vocabulary, after [CLS]; case is ignored.

    Ids: [PAD] 0, [UNK] 1, [CLS] 2, then the words in their order. What stands between spaces is a
    word of the vocabulary, or else it is split at its signs, and the longest words of the
    vocabulary are taken from the left: "three." is "three" and ".". Signs that the vocabulary lacks
    are left out, as its captions have none.

    Args:
      words: the vocabulary.
      length: ids per text; a longer one is cut off.
      shorten: what training keeps of a longer text: "truncate" its first ids, "random" ones, a
        "block" of them, or by "syntax" those of nouns first, then of adjectives and verbs.

    Raises:
      ValueError: a word occurs twice or has a space, or the length is below 2.
    """

    unknown_id = 1

    def __init__(self, words: tuple[str, ...], length: int, shorten: str = "truncate"):
        super().__init__(length, Frame((2,), (), 0), shorten)
        parts = [split_signs(word) for word in words]
        repeated = [word for word, n in Counter(map("".join, parts)).items() if n > 1]
        spaced = [word for word in words if split_at_spaces(word) != [word]]
        if repeated or spaced:
            fault = "is there twice" if repeated else "is empty or has a space"
            raise ValueError(f"words: {(repeated + spaced)[0]!r} {fault}")
        self.vocab_size = len(words) + 3
        self.fingerprint = fingerprint(["words", words, [length]])
        self._words = words
        self._ids = {"".join(word): number for number, word in enumerate(parts, start=3)}
        self._most_parts = max(map(len, parts), default=1)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the word of each id."""
        words = [*SPECIAL_TOKENS[:3], *map(str.lower, self._words)]
        return [words[id] for id in ids]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [
            [id for word in split_at_spaces(fold_text(text)) for id in self._encode_word(word)]
            for text in texts
        ]

    def _encode_word(self, word: str) -> Sequence[int]:
        known = self._ids.get(word)
        return self._split(word) if known is None else (known,)

    def _split(self, word: str) -> list[int]:
        """Returns the ids of the longest words in a word, from the left."""
        parts, ids, place = split_signs(word), [], 0
        while place < len(parts):
            ends = range(min(len(parts), place + self._most_parts), place, -1)
            end = next((end for end in ends if "".join(parts[place:end]) in self._ids), place + 1)
            id = self._ids.get("".join(parts[place:end]))
            if id is not None or not is_sign(parts[place]):
                ids.append(self.unknown_id if id is None else id)
            place = end
        return ids


class ClassNameTokenizer:
    """A class name, or "NAME, DESCRIPTION", becomes the label of the class: one id per text.

    It goes with a table of embeddings in place of a text encoder (UniCL, Table 3).

    Args:
      classes: a class list of the package or a file, as `read_classes` takes it.
      length: ids per text, which must be 1.

    Raises:
      ValueError: the class list cannot be read, two of its classes have the same name and
        description, or the length is not 1.
    """

    def __init__(self, classes: str, length: int = 1):
        if length != 1:
            raise ValueError(f"length is {length}; a class name is one id, so it must be 1")
        known = read_classes(classes)
        phrases = known.phrases()
        self._ids = {phrase: label for label, phrase in enumerate(phrases)}
        if len(self._ids) < len(known):
            twice = Counter(phrases).most_common(1)[0][0]
            raise UserError(
                f"classes: several of {classes} are {twice!r}; descriptions set them apart, "
                "which python -m big_align.tools.describe_classes adds"
            )
        counts = Counter(known.names)
        for label, name in enumerate(known.names):
            if counts[name] == 1:
                self._ids.setdefault(name, label)
        self._classes = classes
        self.length = length
        self.vocab_size = len(known)
        self.fingerprint = fingerprint(["class_names", phrases, []])
        self._phrases = phrases

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the class of each id."""
        return [self._phrases[id] for id in ids]

    def __call__(self, texts: Sequence[str]) -> Ids:
        """Returns labels, all real; UserError if a text is not a class, or is a name of several."""
        for text in texts:
            if compose(text) not in self._ids:
                raise UserError(
                    f"{text!r} is not the name of one class of {self._classes}; names are used "
                    "alone (the template '{}'), with their descriptions where classes share a name"
                )
        text = np.array([self._ids[compose(text)] for text in texts], np.int32).reshape(-1, 1)
        return text, np.ones_like(text, bool)


class NoTokenizer:
    """A placeholder if no texts are read: with `captions_per_image = 0` and no text tower.

    Args:
      length: the length that texts would have.
    """

    vocab_size = 0
    fingerprint = "none"

    def __init__(self, length: int = 1):
        check_at_least(1, length=length)
        self.length = length

    def __call__(self, texts: Sequence[str]) -> Ids:
        """Returns arrays without rows; raises UserError if there is a text."""
        if len(texts):
            raise UserError(
                f"config.tokenizer.name = 'none' makes no ids of texts as {texts[0]!r}: set "
                "config.data.captions_per_image = 0, or name a tokenizer"
            )
        return np.zeros((0, self.length), np.int32), np.zeros((0, self.length), bool)


class WordPieceTokenizer(FramedTokenizer):
    """BERT's WordPiece (Devlin et al. 2019): [CLS] pieces [SEP].

    Args:
      vocabulary: a file with one piece per line, continued pieces with ##, or a `tokenizer.json`;
        it may be in a bucket or in a package.
      length: ids per text; a longer one keeps its first pieces and [SEP].
      lowercase: whether case and accents are dropped; must be as when the vocabulary was made.
      shorten: what training keeps of a longer text: "truncate" its first ids, "random" ones, a
        "block" of them, or by "syntax" those of nouns first, then of adjectives and verbs.

    Attributes:
      vocabulary: the pieces, in the order of the ids.
      lowercase: as given.

    Raises:
      ValueError: the file is missing or not a vocabulary, or the length is below 3.
    """

    learned_by_tool = True  # `tools.build_vocab` makes the vocabulary

    def __init__(
        self,
        vocabulary: str,
        length: int = 64,
        lowercase: bool = True,
        shorten: str = "truncate",
    ):
        self.vocabulary = pieces = list_wordpieces(vocabulary)
        places = {piece: number for number, piece in enumerate(pieces)}
        pad, start, end = (places[token] for token in ("[PAD]", "[CLS]", "[SEP]"))
        super().__init__(length, Frame((start,), (end,), pad), shorten)
        self.lowercase = lowercase
        self.vocab_size = len(pieces)
        self.fingerprint = fingerprint(["wordpiece", pieces, [length, lowercase]])
        self.unknown_id = places["[UNK]"]
        try:
            self._split = make_splitter(pieces, self.unknown_id)
        except ValueError as error:
            raise ValueError(f"vocabulary: {vocabulary!r} cannot be used: {error}") from error

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the piece of each id."""
        return [self.vocabulary[id] for id in ids]

    def __call__(self, texts: Sequence[str]) -> Ids:
        """Makes ids as for all texts, without lists of them."""
        ids, starts = self._split(self._clean(texts))
        counts = np.diff(starts)
        place = np.arange(len(ids)) - np.repeat(starts[:-1], counts)
        return self._fill(ids[place < self.room], np.minimum(counts, self.room))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        ids, starts = (each.tolist() for each in self._split(self._clean(texts)))
        return [ids[here:there] for here, there in itertools.pairwise(starts)]

    def _clean(self, texts: Sequence[str]) -> list[str]:
        return [clean_for_bert(text, self.lowercase) for text in texts]


def list_wordpieces(vocabulary: str) -> list[str]:
    """Reads a WordPiece vocabulary, the pieces in the order of their ids (`read_ids`)."""
    return list(read_ids(vocabulary, SPECIAL_TOKENS[:4], PUBLISHED))
