"""What training keeps of a text that has more ids than a text tower reads (Li, Wang & Xie 2023).

Evaluation always keeps the beginning. A tokenizer whose texts can be shortened otherwise says so in
`shorten`, and has the `room`, `encode` and `frame` of a `framed.FramedTokenizer`.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from big_align.core.errors import check_known
from big_align.data.text import word_ranks

TRUNCATE, RANDOM, BLOCK, SYNTAX = WAYS = ("truncate", "random", "block", "syntax")
REMEMBERED = 2**17  # words


@runtime_checkable
class Numbers(Protocol):
    """Random numbers in [0, 1)."""

    def random(self) -> float:
        """Returns the next one."""


def check_way(way: str) -> None:
    """Raises a UserError if there is no such way, or its package is not installed."""
    check_known("shorten", way, WAYS)
    if way == SYNTAX:
        word_ranks.load()


class Shortener:
    """Makes the ids of texts for training, with those of long texts that `shorten` keeps.

    Attributes:
      way: one of `WAYS`.
      draws: whether a call needs random numbers, a stream for each text.
    """

    def __init__(self, tokenizer: Any):
        self.way = getattr(tokenizer, "shorten", TRUNCATE)
        self.draws = self.way in (RANDOM, BLOCK)
        self._tokenizer = tokenizer
        self._counts: dict[str, int] = {}  # ids of words
        check_way(self.way)

    def __call__(self, texts: Sequence[str], draws: Sequence[Numbers] = ()) -> Any:
        if self.way == TRUNCATE:
            return self._tokenizer(texts)
        rows, kept = self.choose(texts, draws)
        return self._tokenizer.frame(
            [[row[place] for place in places] for row, places in zip(rows, kept, strict=True)]
        )

    def choose(
        self, texts: Sequence[str], draws: Sequence[Numbers] = ()
    ) -> tuple[list[list[int]], list[Sequence[int]]]:
        """Returns all ids of each text but the tokenizer's own, and the places of those kept."""
        rows, room = self._tokenizer.encode(texts), self._tokenizer.room
        kept: list[Sequence[int]] = [range(min(len(row), room)) for row in rows]
        long = [n for n, row in enumerate(rows) if len(row) > room]
        if self.way == SYNTAX:
            ranks = self._rank([texts[n] for n in long])
            for n, ranked in zip(long, ranks, strict=True):
                if len(ranked) == len(rows[n]):
                    kept[n] = keep_best(ranked, room)
        elif self.draws:
            keep = keep_some if self.way == RANDOM else keep_run
            for n in long:
                kept[n] = keep(len(rows[n]), room, draws[n])
        return rows, kept

    def _rank(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ranks of ids, those of their words.

        There may be as many as ids in the text only if the tokenizer splits it at words too.
        """
        rank, words = word_ranks.load(), [word_ranks.split(text) for text in texts]
        counts = self._counts if len(self._counts) < REMEMBERED else {}
        new = list({word for some in words for word in some if word not in counts})
        counts.update(zip(new, map(len, self._tokenizer.encode(new)), strict=True))
        self._counts = counts
        return [
            [one for one, word in zip(rank(some), some, strict=True) for _ in range(counts[word])]
            for some in words
        ]


def keep_some(count: int, room: int, draws: Numbers) -> list[int]:
    """Draws `room` of `count` places, in ascending order; every subset is equally likely."""
    places = list(range(count))
    for n in range(room):
        other = n + int(draws.random() * (count - n))
        places[n], places[other] = places[other], places[n]
    return sorted(places[:room])


def keep_run(count: int, room: int, draws: Numbers) -> range:
    """Draws `room` of `count` places in a row; every first one is equally likely."""
    first = int(draws.random() * (count - room + 1))
    return range(first, first + room)


def keep_best(ranks: Sequence[int], room: int) -> list[int]:
    """Returns the `room` places with the lowest ranks, in ascending order; ties go to the first."""
    return sorted(sorted(range(len(ranks)), key=ranks.__getitem__)[:room])
