"""What is in a source, as the loader sees it: counts, faults, sizes, texts and duplicates."""

import array
import concurrent.futures
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8

from big_align.core.digests import hash_bytes
from big_align.core.progress import make_bar
from big_align.data import boundary, examples
from big_align.data.images.image_ops import MAX_PIXELS, Transform, open_view
from big_align.data.loading.broken import name_kind, tell_reason
from big_align.data.loading.parallel import count_cores
from big_align.data.loading.shuffle import PositionRandom
from big_align.data.shard_offsets import ShardOffsets
from big_align.data.text.shortening import TRUNCATE, Shortener
from big_align.data.text.tokenizers import spell

CHUNK = 256  # examples that are read before their texts are tokenized
LONGEST = 512  # texts are counted up to this many tokens
SHOWN = 5  # groups of duplicates, and captions of a picture


@dataclasses.dataclass
class Picture:
    """An example as a model sees it."""

    name: str
    pixels: UInt8[np.ndarray, "h w 3"]  # after the transform
    size: tuple[int, int]  # width and height before it
    texts: list[list[str]]  # the tokens of each text, all of them
    kept: list[Sequence[int]]  # places of what a visit keeps, if not the first; ends left out
    labels: tuple[int, ...]


@dataclasses.dataclass
class Fault:
    """A kind of broken example: how many there are, and the first of them with its reason."""

    count: int
    name: str
    reason: str


@dataclasses.dataclass
class Duplicates:
    """What occurs more than once."""

    count: int  # beyond the first of each
    total: int  # in all
    groups: list[tuple[int, str, list[str]]]  # of the largest: how many, what, and their names


@dataclasses.dataclass
class Report:
    """What was found in a source."""

    examples: int
    shards: int
    lost: int  # examples that lack a part, according to the source's index
    read: int  # examples that were looked at
    faults: list[Fault]  # the most frequent first
    sizes: Int[np.ndarray, "n 2"]  # width and height of each intact image
    captions: Int[np.ndarray, " n"]  # of each intact example
    tokens: Int[np.ndarray, " m"]  # of each text that a model may see, up to `LONGEST`
    length: int  # the most tokens of a text that a model sees; 0 without tokens
    shorten: str  # which of the others training keeps, one of `shortening.WAYS`
    unknown: int  # tokens that stand for what the tokenizer does not know
    labels: Counter  # examples of each class
    images_twice: Duplicates  # with the same bytes
    captions_twice: Duplicates  # of different examples
    pictures: list[Picture]  # of some examples

    @property
    def cut(self) -> int:
        """Texts that are longer than a model sees."""
        return int((self.tokens > self.length).sum()) if self.length else 0


@dataclasses.dataclass
class Texts:
    """How the texts of examples become tokens."""

    length: int  # the most tokens of a text that the model sees
    tokenizer: Any  # the model's, except that its length is `LONGEST`
    texts_of: Callable[[list[str], tuple[int, ...]], list[str]]  # makes what a model may see
    shortener: Shortener  # makes what training sees of it

    def keep(self, texts: list[str], rng: PositionRandom) -> list[Sequence[int]]:
        """Returns the places of the ids that a visit keeps; none if they are always the first."""
        if self.shortener.way == TRUNCATE:
            return []
        return self.shortener.choose(texts, [rng.split(n) for n in range(len(texts))])[1]


@dataclasses.dataclass
class _Seen:
    number: int
    captions: list[str]
    labels: tuple[int, ...]
    size: tuple[int, int]
    digest: int
    pixels: UInt8[np.ndarray, "h w 3"]


def inspect_source(
    source: examples.Source,
    transform: str,
    texts: Texts | None,
    most: int | None = None,
    pictures: int = 24,
    seed: int = 0,
    max_pixels: int = MAX_PIXELS,
) -> Report:
    """Looks at the examples of a source, or at `most` of them drawn at random.

    The transform and `max_pixels` are those of training; without `texts` none are read. Some
    examples are kept as pictures.
    """
    offsets, random = ShardOffsets(source.shard_sizes), np.random.default_rng(seed)
    numbers = np.arange(offsets.count)
    if most is not None and most < offsets.count:
        numbers = np.sort(random.choice(offsets.count, most, replace=False))
    shown = set(random.permutation(numbers)[: 2 * pictures].tolist())  # some may be broken
    faults: dict[str, Fault] = {}
    kept: list[Picture] = []
    sizes, counts, tokens, unknown, labels = [], [], [], 0, Counter()
    images, captions = array.array("Q"), array.array("Q")  # numbers and hashes, in turns
    read = _Reader(source, Transform(transform, max_pixels), max_pixels, seed)
    for chunk in _read_chunks(read, numbers, faults):
        visible = [texts.texts_of(s.captions, s.labels) if texts else [] for s in chunk]
        pieces, strange = _tokenize(texts, visible)
        unknown += strange
        for seen, written, text_tokens in zip(chunk, visible, pieces, strict=True):
            sizes.append(seen.size)
            counts.append(len(seen.captions))
            tokens += map(len, text_tokens)
            labels.update(seen.labels)
            images.extend((seen.number, seen.digest))
            for caption in dict.fromkeys(seen.captions):
                captions.extend((seen.number, _digest(caption)))
            if seen.number in shown and len(kept) < pictures:
                some = [spell(texts.tokenizer, ids) for ids in text_tokens[:SHOWN]]
                rng = PositionRandom(seed, seen.number)
                places = texts.keep(written[:SHOWN], rng) if texts else []
                name = read.name(seen.number)
                kept.append(Picture(name, seen.pixels, seen.size, some, places, seen.labels))

    def find_caption(number: int, digest: int) -> str:
        found = boundary.read_texts(source, *offsets.locate_one(number))[0]
        return next(caption for caption in found if _digest(caption) == digest)

    return Report(
        examples=offsets.count,
        shards=len(source.shard_sizes),
        lost=int(source.broken.sum()),
        read=len(numbers),
        faults=sorted(faults.values(), key=lambda fault: -fault.count),
        sizes=np.array(sizes, np.int64).reshape(-1, 2),
        captions=np.array(counts, np.int64),
        tokens=np.array(tokens, np.int64),
        length=texts.length if texts else 0,
        shorten=texts.shortener.way if texts else TRUNCATE,
        unknown=unknown,
        labels=labels,
        images_twice=_find_twice(images, read.name, lambda number, digest: ""),
        captions_twice=_find_twice(captions, read.name, find_caption),
        pictures=kept,
    )


def _find_twice(
    pairs: array.array, name_of: Callable[[int], str], text_of: Callable[[int, int], str]
) -> Duplicates:
    """Groups the numbers of examples with equal hashes."""
    rows = np.array(pairs, np.uint64).reshape(-1, 2)
    digests, counts = np.unique(rows[:, 1], return_counts=True)
    largest = [n for n in np.argsort(-counts, kind="stable")[:SHOWN].tolist() if counts[n] > 1]
    groups = []
    for n in largest:
        numbers = rows[rows[:, 1] == digests[n], 0].astype(np.int64).tolist()
        names = [name_of(number) for number in numbers[:SHOWN]]
        groups.append((int(counts[n]), text_of(numbers[0], int(digests[n])), names))
    return Duplicates(len(rows) - len(digests), len(rows), groups)


def _digest(data: bytes | str) -> int:
    return int.from_bytes(hash_bytes(data), "big")


class _Reader:
    def __init__(self, source: examples.Source, transform: Transform, max_pixels: int, seed: int):
        self._source, self._offsets = source, ShardOffsets(source.shard_sizes)
        self._transform, self._max_pixels, self._seed = transform, max_pixels, seed

    def __call__(self, number: int) -> _Seen | examples.BrokenExample:
        try:
            example = boundary.read_example(self._source, *self._offsets.locate_one(number))
            image = example.image
            view = open_view(image, self._max_pixels)
            pixels = self._transform(image, PositionRandom(self._seed, number))
        except examples.BrokenExample as error:
            return error
        data = image.tobytes() if isinstance(image, np.ndarray) else bytes(image)
        size = view.width, view.height
        return _Seen(number, example.captions, example.labels, size, _digest(data), pixels)

    def name(self, number: int) -> str:
        return self._source.name(*self._offsets.locate_one(number))


def _read_chunks(
    read: _Reader, numbers: Int[np.ndarray, " n"], faults: dict[str, Fault]
) -> Iterator[list[_Seen]]:
    """Yields the intact examples, decoded, in threads; counts the others."""
    with (
        concurrent.futures.ThreadPoolExecutor(count_cores()) as pool,
        make_bar(total=len(numbers), unit=" examples", dynamic_ncols=True) as bar,
    ):
        for start in range(0, len(numbers), CHUNK):
            some, intact = numbers[start : start + CHUNK].tolist(), []
            for number, seen in zip(some, pool.map(read, some), strict=True):
                bar.update()
                if isinstance(seen, _Seen):
                    intact.append(seen)
                    continue
                reason = tell_reason(seen)
                fault = Fault(0, read.name(number), reason)
                faults.setdefault(name_kind(reason), fault).count += 1
            yield intact


def _tokenize(texts: Texts | None, visible: list[list[str]]) -> tuple[list[list[list[int]]], int]:
    """Returns the ids of each text of each example, and how many are unknown."""
    flat = [text for some in visible for text in some]
    if texts is None or not flat:
        return [[] for _ in visible], 0
    ids, real = texts.tokenizer(flat)
    unknown = getattr(texts.tokenizer, "unknown_id", None)
    strange = int(((ids == unknown) & real).sum()) if unknown is not None else 0
    rows = iter([row[mask].tolist() for row, mask in zip(ids, real, strict=True)])
    return [[next(rows) for _ in some] for some in visible], strange
