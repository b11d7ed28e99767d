"""The tags that captions name (IDEA §3.2)."""

import functools
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int32

from big_align.core.errors import UserError, check_at_least
from big_align.core.words import split_words
from big_align.data.labels.word_net import WordNet

NO_TAG = -1

FUNCTION_WORDS = frozenset(
    "a about above after against all along am among an and any are around as at be because been "
    "before behind being below beside between both but by can could did do does doing done down "
    "during each either else few for from had has have having he her here hers him his how i if "
    "in into is it its just least less like many may me might mine more most much must my near "
    "neither no nor not of off on one or our out over own per same shall she should so some such "
    "than that the their them then there these they this those though through thus till to too "
    "toward under until up upon us very via was we were what when where whether which while who "
    "whose why will with within without would yet you your".split()
)
"""No plurals, and no nouns although WordNet has some ("a" vitamin, "in" for inch, "who")."""

TRUTH_WIDTH = 4
"""Places for all tags of an image, per place for those of its text."""


class TagExtractor:
    """Finds tags in captions; deterministic, and safe to call from threads.

    A caption is read as words and signs (`split_words`). Tags are matched by whole words:
    - A tag of one word matches that word, or else a word whose lemma it is (WordNet, as a noun):
      "dogs" is "dog". A tag that is listed in the plural matches its singular too, unless the
      plural is a noun of its own, as "glasses" is.
    - A tag of several words matches these words in sequence, with no sign but a hyphen between
      them. The paper matches them with the sentence directly; here the last word may be in the
      plural, so that "hot dogs" counts.
    - Words inside a tag of several words are not matched there: "hot dog" is not a "dog", but "a
      dog and a hot dog" is both. This is a reading of the paper's "If the compound noun tag
      includes the noun tag, we only select the compound noun tag". Which compounds are names at
      all is chosen before (`tag_counting.keep_compounds`).

    The ids of tags are their order in `names`. If there are more than `max_tags`, those with the
    smallest ids, which are the most frequent ones, are kept.
    """

    def __init__(self, names: Sequence[str], max_tags: int, wordnet: str | None = None):
        check_at_least(1, max_tags=max_tags)
        self._names, self.max_tags = tuple(names), max_tags
        self._dictionary = WordNet(wordnet)
        self._lemma = functools.lru_cache(maxsize=2**18)(self._find_lemma)
        self._single = functools.lru_cache(maxsize=2**18)(self._find_single)
        self._ids: dict[tuple[str, ...], int] = {}
        self._lengths: dict[str, tuple[int, ...]] = {}
        self._index()

    def __call__(self, captions: Sequence[str]) -> Int32[np.ndarray, " t"]:
        """Returns the ids of the tags that occur in any of the captions, ascending, then -1."""
        return pad_tags(self.find(captions), self.max_tags)

    def find(self, captions: Iterable[str]) -> set[int]:
        """Returns the ids of the tags that occur in any of the captions."""
        found: set[int] = set()
        for caption in captions:
            words, shadowed = split_words(caption), 0
            for place, word in enumerate(words):
                if word in self._lengths:
                    id, end = self._find_compound(words, place)
                    # what ends no later than an earlier compound is inside it
                    if end > shadowed:
                        found.add(id)
                        shadowed = end
                if place >= shadowed:
                    found.add(self._single(word))
        found.discard(NO_TAG)
        return found

    def _find_compound(self, words: list[str], place: int) -> tuple[int, int]:
        """Returns the id of the longest compound that begins at a place, and its end, or -1, 0."""
        for length in self._lengths[words[place]]:
            end = place + length
            if end <= len(words):
                head, last = tuple(words[place : end - 1]), words[end - 1]
                id = self._ids.get((*head, last))
                if id is None:
                    id = self._ids.get((*head, self._lemma(last)))
                if id is not None:
                    return id, end
        return NO_TAG, 0

    def _find_single(self, word: str) -> int:
        id = self._ids.get((word,))
        return self._ids.get((self._lemma(word),), NO_TAG) if id is None else id

    def _find_lemma(self, word: str) -> str:
        # signs, numbers and other scripts have no plural here
        if word in FUNCTION_WORDS or not (word.isascii() and word.isalpha()):
            return word
        return self._dictionary.lemma_of(word)

    def _index(self) -> None:
        """Indexes the words of every name, then those with the last one in the singular."""
        listed = [tuple(split_words(name)) for name in self._names]
        for id, words in enumerate(listed):
            if not words:
                raise UserError(f"the tag {self._names[id]!r} has no words")
            if (other := self._ids.setdefault(words, id)) != id:
                raise UserError(
                    f"the tags {self._names[other]!r} and {self._names[id]!r} are the same words: "
                    "leave one out"
                )
        for id, words in enumerate(listed):
            *head, last = words
            is_noun = self._dictionary.has_noun(" ".join(words))
            if (lemma := self._lemma(last)) != last and not is_noun:
                self._ids.setdefault((*head, lemma), id)
        lengths: dict[str, set[int]] = {}
        for words in self._ids:
            if len(words) > 1:
                lengths.setdefault(words[0], set()).add(len(words))
        self._lengths = {word: tuple(sorted(some, reverse=True)) for word, some in lengths.items()}


class Tagger:
    """Makes the fields `tags` and, for `truth`, `true_tags` of an example.

    These are the tags of all its captions, in `TRUTH_WIDTH` times the places.
    """

    def __init__(self, extract: TagExtractor, truth: bool = False):
        self._extract, self._truth = extract, truth
        self.shapes = tag_shapes(extract.max_tags, truth)

    def __call__(
        self, texts: Sequence[str], captions: Sequence[str]
    ) -> dict[str, Int32[np.ndarray, " t"]]:
        """Returns the fields of an example, from the texts that were drawn and all its captions."""
        tags = self._extract(texts)
        if not self._truth:
            return {"tags": tags}
        given = set(tags[tags >= 0].tolist())
        (width,) = self.shapes["true_tags"]
        others = sorted(self._extract.find([*texts, *captions]) - given)[: width - len(given)]
        return {"tags": tags, "true_tags": pad_tags([*given, *others], width)}


def tag_shapes(max_tags: int, truth: bool) -> dict[str, tuple[int]]:
    """Returns the shape of each field of an example that a `Tagger` makes."""
    shapes = {"tags": (max_tags,)}
    return shapes | {"true_tags": (TRUTH_WIDTH * max_tags,)} if truth else shapes


def pad_tags(ids: Iterable[int], width: int) -> Int32[np.ndarray, " t"]:
    """Returns the smallest ids, ascending, then -1."""
    padded = np.full(width, NO_TAG, np.int32)
    kept = sorted(ids)[:width]
    padded[: len(kept)] = kept
    return padded
