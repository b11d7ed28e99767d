"""Beam's transforms around the functions of this folder."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam

from big_align.prepare import sampling, text_rules
from big_align.prepare.plan import JobPlan
from big_align.prepare.rules import Kept, Pair, Rules, decide_group
from big_align.prepare.sketch import SAMPLED, is_sampled

BUCKETS = 4096  # of the order of all examples: each is sorted in the memory of a worker
SHOWN = 12  # pairs that the report shows of each rule


class SumByName(beam.CombineFn):
    """Adds up dictionaries, entry by entry: of numbers, or of sketches."""

    def create_accumulator(self) -> dict:
        return {}

    def add_input(self, total: dict, element: dict) -> dict:
        for name, found in element.items():
            total[name] = total[name] + found if name in total else found
        return total

    def merge_accumulators(self, totals: Iterable[dict]) -> dict:
        merged: dict = {}
        for total in totals:
            self.add_input(merged, total)
        return merged

    def extract_output(self, total: dict) -> dict:
        return total


class RareTexts(beam.CombineFn):
    """The texts of a token, if it occurs less often than `min_count`; else nothing.

    So only the count of a frequent token is kept, and no worker holds all texts with "the".
    """

    def __init__(self, min_count: int):
        self._min_count = min_count

    def create_accumulator(self) -> tuple[int, list]:
        return 0, []

    def add_input(self, held: tuple[int, list], element: tuple[bytes, int]) -> tuple[int, list]:
        text, count = element
        return self._bound(held[0] + count, [*held[1], text])

    def merge_accumulators(self, several: Iterable[tuple[int, list]]) -> tuple[int, list]:
        total, texts = 0, []
        for count, some in several:
            total += count
            texts = texts + some if total < self._min_count else []
        return self._bound(total, texts)

    def _bound(self, count: int, texts: list) -> tuple[int, list]:
        return count, texts if count < self._min_count else []

    def extract_output(self, held: tuple[int, list]) -> list[bytes]:
        return sorted(set(held[1])) if held[0] < self._min_count else []


def count_tokens(texts: Iterable[str], sampled: bool = False) -> Iterator[tuple[bytes, int]]:
    """Yields the tokens of texts, or of a sample beside a sketch, each with its count."""
    counts: Counter = Counter()
    for text in texts:
        counts.update(text_rules.name_tokens(text_rules.split_unigrams(text), True))
    yield from ((t, n) for t, n in counts.items() if not sampled or is_sampled(t))


@beam.ptransform_fn
def CountTokens(tokens: beam.PCollection, sampled: bool) -> beam.PCollection:
    """Counts how many tokens occur how often, or estimates it from a sample of them.

    Takes (token, count) of `count_tokens`; makes dictionaries, to be summed: `1 7` is how many
    unigrams occur seven times.
    """
    weight = SAMPLED if sampled else 1
    return (
        tokens
        | "Count" >> beam.CombinePerKey(sum)
        | "Frequency" >> beam.Map(
            lambda pair, weight=weight: {f"{pair[0][:1].decode()} {pair[1]}": weight}
        )
    )  # fmt: skip


def list_tokens(pair: tuple[bytes, str], bigrams: bool) -> Iterator[tuple[bytes, Any]]:
    """Yields the tokens of a text, each with the text's id and how often it occurs there."""
    identity, text = pair
    words = text_rules.split_unigrams(text)
    tokens = Counter([*words, *(text_rules.pair_up(words) if bigrams else [])])
    yield from ((token.encode(), (identity, count)) for token, count in tokens.items())


def add_up(counts: list[int]) -> list[int]:
    """Puts counts of a token together."""
    return [sum(counts)]


def leave_out_texts(texts: list[tuple[bytes, int]], min_count: int) -> list[tuple[bytes, int]]:
    """Puts texts of a token together: once it is not rare, `RareTexts` needs its count alone."""
    total = sum(count for _, count in texts)
    return texts if total < min_count else [(b"", total)]


@beam.ptransform_fn
def FindRareTexts(tokens: beam.PCollection, min_count: int) -> beam.PCollection:
    """Finds texts with a rare token; `list_tokens` of all become (text id, "rare"), once."""
    return (
        tokens
        | "Rare" >> beam.CombinePerKey(RareTexts(min_count))
        | "Texts" >> beam.FlatMap(lambda pair: pair[1]).with_output_types(bytes)
        | "Once" >> beam.Distinct()
        | "Tell" >> beam.Map(lambda text: (text, "rare")).with_output_types(tuple[bytes, str])
    )  # fmt: skip


def weigh_partners(found: tuple[bytes, int], name: str, sampled: bool) -> dict[str, int]:
    """Returns an entry of the histogram of partners; a sampled key counts for `SAMPLED` keys."""
    if not sampled:
        return {f"{name} {found[1]}": 1}
    return {f"{name} {found[1]}": SAMPLED} if is_sampled(found[0]) else {}


@beam.ptransform_fn
def CountPartners(pairs: beam.PCollection) -> beam.PCollection:
    """Counts the different partners of each key: (key, partner) of all become (key, count)."""
    return (
        pairs
        | "Once" >> beam.Distinct()
        | "One" >> beam.Map(lambda pair: (pair[0], 1)).with_output_types(tuple[bytes, int])
        | "Count" >> beam.CombinePerKey(sum)
    )


def judge_text(element: tuple[bytes, dict[str, Iterable]]) -> Iterator[tuple[bytes, tuple]]:
    """Adds the rules that would drop a text to all its pairs; yields these by their image."""
    _, found = element
    failed = tuple(found["failed"])
    for group, pair in found["pairs"]:
        yield group, pair[:-1] + (tuple(pair[-1]) + failed,)


def decide(
    element: tuple[bytes, dict[str, Iterable]], rates: dict[str, float] | None, plan: JobPlan
) -> Iterator[Any]:
    """Decides about the pairs of an image.

    Makes ("kept", example) of examples that are written, as (order, file, row, ...); ("counts",
    dictionary), how many pairs each rule would drop, and how many it was first to drop; and
    ("samples", pair), pairs for the report. They are one output: not every runner has several.

    The rates of languages are None if these are not sampled.
    """
    _, found = element
    crowded, listed = _find_reasons(found)
    is_drawn = plan.sample_languages(rates) if rates else None
    counts: Counter = Counter({"different_images": 1})
    samples: dict[str, tuple] = {}
    pairs = _Pairs(found["pairs"])
    for decided in decide_group(pairs, crowded, bool(listed), plan.rules, is_drawn):
        if isinstance(decided, Kept):
            yield "kept", _flatten(plan.draw(*decided.first[:2]), decided)
            counts["examples"] += 1
            counts["bytes"] += decided.first.size
            continue
        pair, failed = decided
        counts["pairs"] += 1
        counts.update(f"fails {name}" for name in failed)
        counts[f"first {failed[0]}" if failed else "kept"] += 1
        counts[listed] += "listed" in failed
        if pair.language:
            counts[f"language {pair.language} pairs"] += 1
            counts[f"language {pair.language} kept"] += not failed
            counts[f"language {pair.language} abundant"] += "abundant" in failed
        for name in failed or ("kept",):
            shown = (plan.draw(*pair[:2]), *pair[:6])
            samples[name] = min(samples.get(name, shown), shown)
    yield "counts", {k: n for k, n in counts.items() if n}
    for shown in samples.items():
        yield "samples", shown


def count_languages(element: tuple[bytes, dict[str, Iterable]], rules: Rules) -> dict[str, int]:
    """Returns how many pairs of an image each language has that no rule drops."""
    crowded, listed = _find_reasons(element[1])
    pairs = _Pairs(element[1]["pairs"])
    return sampling.count_languages(pairs, crowded, bool(listed), rules)


def _find_reasons(found: dict[str, Iterable]) -> tuple[bool, str]:
    """Returns whether an image has too many texts, and why it is listed, if it is."""
    reasons = set(found["reasons"])
    listed = min((reason for reason in reasons if reason.startswith("listed ")), default="")
    return "crowded" in reasons, listed


class _Pairs:
    """Pairs of a group, which can be iterated over repeatedly without being held in memory."""

    def __init__(self, tuples: Iterable[tuple]):
        self._tuples = tuples

    def __iter__(self) -> Iterator[Pair]:
        return (Pair(*values) for values in self._tuples)


def _flatten(order: bytes, kept: Kept) -> tuple:
    first = kept.first
    about = [kept.texts, kept.languages, kept.labels, kept.merged]
    return order, first.file, first.row, (first.width, first.height, first.size), about


@beam.ptransform_fn
def Rank(examples: beam.PCollection) -> beam.PCollection:
    """Gives each example its rank in the order of all; makes (rank, total, example).

    The order is cut into buckets by its first bits: where a bucket begins follows from how many
    examples are in those before it.
    """
    keyed = examples | "Bucket" >> beam.Map(
        lambda example: (int.from_bytes(example[0], "big") * BUCKETS >> 64, example)
    ).with_output_types(tuple[int, Any])
    sizes = (
        keyed
        | "One" >> beam.Map(lambda pair: {pair[0]: 1})
        | "Sizes" >> beam.CombineGlobally(SumByName())
    )
    return (
        keyed
        | "Group" >> beam.GroupByKey()
        | "Sort" >> beam.FlatMap(_rank_bucket, beam.pvalue.AsSingleton(sizes))
    )


def _rank_bucket(
    group: tuple[int, Iterable[tuple]], sizes: dict[int, int]
) -> Iterator[tuple[int, int, tuple]]:
    bucket, examples = group
    start = sum(size for number, size in sizes.items() if number < bucket)
    total = sum(sizes.values())
    for place, example in enumerate(sorted(examples, key=lambda each: each[:3])):
        yield start + place, total, example
