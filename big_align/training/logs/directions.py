"""Which way a number of an evaluation is better: its evaluator says so, or else its name."""

import re
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LOWER, HIGHER, NEITHER = "lower", "higher", "neither"  # what is better
FIELD = "lower_is_better"
"""The attribute of an evaluator, and the field of `evaluations.jsonl`, that say it."""

Said = Mapping[str, Sequence[str]]
"""The numbers of which lower is better, by evaluator, of those evaluators that say so."""
UNSAID: Said = types.MappingProxyType({})

CHANCE, CANDIDATES = "_chance", "_candidates"
"""Endings of names: what a number is by chance, and how many there are to choose from."""
FACT = re.compile(
    r"(^|_)(strength|tags|per_image|deviation|std|examples|chance|candidates)$|^frequent_|_std$"
)
ENDINGS = ("loss", "error", "err", "perplexity", "entropy", "nll", "mse")
WORDS = ("ece", "mae", "ppl", "fid", "wer", "cer", "brier", "distance")


def collect_said(evaluators: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns what evaluators say in `lower_is_better` (`evaluators.evaluator.Evaluator`)."""
    said = {name: getattr(each, FIELD, None) for name, each in evaluators.items()}
    return {name: list(numbers) for name, numbers in said.items() if numbers is not None}


def read_said(records: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Returns what the evaluators of all lines of `evaluations.jsonl` have said."""
    fields = (record.get(FIELD) for record in records)
    every = (item for each in fields if isinstance(each, dict) for item in each.items())
    return {name: numbers for name, numbers in every if isinstance(numbers, list)}


def find_direction(name: str, said: Said = UNSAID) -> str:
    """Returns whether a number is better if it is lower, or higher, or neither.

    Its name is `evaluator/number`, and decides where the evaluator says nothing.
    """
    evaluator, _, number = name.rpartition("/")
    if FACT.search(number):
        return NEITHER
    low = number in said[evaluator] if evaluator in said else _sounds_low(number)
    return LOWER if low else HIGHER


def _sounds_low(number: str) -> bool:
    """Returns whether a word of a name is that of a loss or an error, or ends like one."""
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", number).lower())
    return words[-1:] == ["rank"] or any(x.endswith(ENDINGS) or x in WORDS for x in words)
