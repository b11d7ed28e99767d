"""Which pairs are dropped, in which order, and what each rule is called."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from big_align.core.digests import hash_bytes
from big_align.core.errors import UserError
from big_align.prepare import text_rules

DUPLICATES = ("merge", "first", "keep")


@dataclasses.dataclass(frozen=True)
class Rules:
    """What pairs must satisfy; None sets no limit. The defaults are those of ALIGN §3."""

    min_side: int | None = 200  # the shorter side of an image has more pixels
    max_aspect: int | float | None = 3.0  # the longer side is below this many shorter ones
    max_texts: int | None = 1000  # an image has at most this many different ones
    max_images: int | None = 10  # a text belongs to at most this many different ones
    min_unigrams: int | None = 3  # of a text, at least
    max_unigrams: int | None = 20  # of a text, at most
    tokens: int | None = text_rules.PAPER_TOKENS  # the most frequent ones, which are not rare
    scale_tokens: bool = True  # whether in small data a rare token is a unigram that occurs once
    duplicates: str = "merge"  # of pixels: `merge` all texts, take the `first`, or `keep` all
    normalize: bool = True  # whether texts are normalized (`text_rules`)
    language_temperature: int | float | None = None  # at which what is left is sampled
    language_floor: int = 1000  # languages with at most this many pairs are not sampled

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool) and not value >= 0:
                raise UserError(f"{field.name} is {value}; it must be at least 0, or none")
        if self.language_temperature == 0:
            raise UserError("language_temperature is 0; it must be above 0, inf for equal shares")
        if self.duplicates not in DUPLICATES:
            raise UserError(f"duplicates is {self.duplicates!r}; it is {', '.join(DUPLICATES)}")
        if self.max_unigrams is not None and (self.min_unigrams or 0) > self.max_unigrams:
            raise UserError(
                f"min_unigrams is {self.min_unigrams} and max_unigrams {self.max_unigrams}: "
                "no text has both"
            )


PRESETS = {
    "align": Rules(),
    "none": Rules(*[None] * 7, scale_tokens=False, duplicates="keep", normalize=False),
}
ORDER = (
    "small", "elongated", "unsafe", "listed", "crowded",
    "shared", "short", "long", "rare", "repeated", "copied", "abundant",
)  # fmt: skip
"""The rules: if several would drop a pair, the first of them counts as the one that did."""


def describe_rules(rules: Rules, token_rule: str = "") -> dict[str, str]:
    """Returns what each rule in force drops, in words; `token_rule` is what a rare token is."""
    told = {
        "small": _say(rules.min_side, "the shorter side of the image has at most {} pixels"),
        "elongated": _say(rules.max_aspect, "the longer side is {:g} or more times the shorter"),
        "unsafe": "the image classifier says so",
        "listed": "the image is in the list of keys that are dropped",
        "crowded": _say(rules.max_texts, "the image has more than {:,} different texts"),
        "shared": _say(rules.max_images, "the text belongs to more than {:,} different images"),
        "short": _say(rules.min_unigrams, "the text has fewer than {} unigrams"),
        "long": _say(rules.max_unigrams, "the text has more than {} unigrams"),
        "rare": f"the text has {token_rule}" if token_rule else "",
        "repeated": "an earlier pair has the same pixels and the same text",
        "copied": "an earlier pair has the same pixels",
        "abundant": _say(
            rules.language_temperature, "its language has more than its share at temperature {:g}"
        ),
    }
    if rules.duplicates == "keep":
        told |= {"repeated": "", "copied": ""}
    if rules.duplicates == "merge":
        told["copied"] = ""
    return {name: told[name] for name in ORDER if told[name]}


def _say(number: int | float | None, text: str) -> str:
    return "" if number is None else text.format(number)


def judge_image(width: int, height: int, flag: str, rules: Rules) -> list[str]:
    """Returns the rules about one image that would drop it; `flag` is what speaks against it."""
    short, long = min(width, height), max(width, height)
    failed = []
    if rules.min_side is not None and short <= rules.min_side:
        failed.append("small")
    if rules.max_aspect is not None and long >= rules.max_aspect * short:
        failed.append("elongated")
    if flag:
        failed.append("unsafe")
    return failed


def judge_length(unigrams: int, rules: Rules) -> list[str]:
    """Returns the rules about the length of a text that would drop it."""
    if rules.min_unigrams is not None and unigrams < rules.min_unigrams:
        return ["short"]
    if rules.max_unigrams is not None and unigrams > rules.max_unigrams:
        return ["long"]
    return []


class Pair(NamedTuple):
    """One image with one of its texts. Pairs are ordered by where they come from."""

    file: int  # the number of the input file
    row: int  # of the example in it
    place: int  # of the text in its example; -1 for an example without texts
    text: str  # normalized, if texts are
    width: int  # of the image, as is the height
    height: int
    size: int  # of its file, in bytes
    flag: str = ""  # what the image classifier says against it
    language: str = ""  # of the text; empty if it was not identified
    labels: tuple[int, ...] = ()  # of the example
    failed: tuple[str, ...] = ()  # rules about texts that would drop it


class Kept(NamedTuple):
    """An example that is written."""

    first: Pair  # the earliest of its pairs, whose image is written
    texts: list[str]
    languages: list[str]
    labels: list[int]  # of all its pairs
    merged: list[tuple[int, int]]  # file and row of the other examples whose texts it has


def decide_group(
    pairs: Iterable[Pair],
    crowded: bool,
    listed: bool,
    rules: Rules,
    is_drawn: Callable[[Pair], bool] | None = None,
) -> Iterator[tuple[Pair, tuple[str, ...]] | Kept]:
    """Decides about all pairs of one image, which can be iterated over several times, in any order.

    It yields every pair, with the rules that would drop it in their order, none for one that is
    kept; and the examples to write: at most one, unless duplicates are kept. The pairs of a dropped
    image are passed through one at a time: a picture that says "not available" has millions.
    Crowded images have too many texts, and listed ones are to be dropped; pairs that no rule drops
    are kept if they are drawn.
    """
    first = next(iter(pairs))
    about_image = judge_image(first.width, first.height, first.flag, rules)
    about_image += ["listed"] * listed + ["crowded"] * crowded
    kept: dict[Any, Pair] = {}
    labels: set[int] = set()
    if not about_image:
        for pair in pairs:
            if not pair.failed:
                labels.update(pair.labels)
                key = _find_key(pair, rules)
                if key not in kept or pair[:3] < kept[key][:3]:
                    kept[key] = pair
    chosen = sorted(kept.values(), key=lambda pair: pair[:3])
    if rules.duplicates == "first":
        chosen = [pair for pair in chosen if pair[:2] == chosen[0][:2]]
    left = {pair[:3] for pair in chosen if is_drawn and not is_drawn(pair)}
    places = {pair[:3] for pair in chosen}
    chosen = [pair for pair in chosen if pair[:3] not in left]
    for pair in pairs:
        failed = [*about_image, *pair.failed]
        if not failed and pair[:3] not in places:
            same = kept[_find_key(pair, rules)][:3] != pair[:3]
            failed = ["repeated" if same else "copied"]
        failed = failed or ["abundant"] * (pair[:3] in left)
        yield pair, tuple(name for name in ORDER if name in failed)
    if rules.duplicates == "keep":
        yield from (_join(list(row)) for _, row in itertools.groupby(chosen, lambda p: p[:2]))
    elif chosen:
        joined = _join(chosen)
        merged = rules.duplicates == "merge"
        yield joined._replace(labels=sorted(labels)) if merged else joined


def _find_key(pair: Pair, rules: Rules) -> Any:
    """Returns what pairs of an image that count as duplicates have in common."""
    if rules.duplicates == "keep":
        return pair[:3]
    return text_rules.identify_text(pair.text)


def _join(chosen: Sequence[Pair]) -> Kept:
    texts = [pair for pair in chosen if pair.place >= 0]
    labels = dict.fromkeys(label for pair in chosen for label in pair.labels)
    rows = dict.fromkeys(pair[:2] for pair in chosen)
    return Kept(
        chosen[0],
        [pair.text for pair in texts],
        [pair.language for pair in texts],
        list(labels),
        [row for row in rows if row != chosen[0][:2]],
    )


def draw_order(seed: int, key: str) -> bytes:
    """Returns eight random bytes that belong to an example: shards are in their order."""
    return hash_bytes(f"{seed} {key}")
