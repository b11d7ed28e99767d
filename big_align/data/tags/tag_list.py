"""Tag lists: the tags that a recognizer knows, how frequent they are, and their tokens."""

import collections
import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int32, Int64

from big_align.core import formats
from big_align.core.digests import fingerprint
from big_align.core.errors import UserError, put_in_a_line
from big_align.core.whole_files import write_whole
from big_align.data.json_texts import find_half, format_json, read_json
from big_align.data.text.tokenizers import Tokenizer

KIND = "tag list"
WEIGHT_MAX = 1e30  # far from where float32 ends; their mean is 1
MAKE = "python -m big_align.tools.build_tags makes one"


@dataclasses.dataclass(frozen=True, eq=False)
class TagList:
    """Tags, the most frequent first; the id of a tag is its position."""

    path: str  # the file, for messages
    names: tuple[str, ...]  # in lower case
    counts: Int64[np.ndarray, " c"]  # captions of the corpus that have the tag
    weights: Float[np.ndarray, " c"]  # in the recognition loss (IDEA eq. 2), see `weigh`
    tokens: Int32[np.ndarray, "c m"]  # of each name inside a text, after a space, padded with 0
    token_mask: Bool[np.ndarray, "c m"]  # which of `tokens` are real
    tokenizer: str  # the fingerprint of what made `tokens`
    removed: tuple[str, ...] = ()  # more frequent tags that were left out

    def __len__(self) -> int:
        return len(self.names)

    @property
    def fingerprint(self) -> str:
        """A hash of the names: what the ids of a batch mean."""
        return fingerprint(self.names)

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raises UserError if the tokens are those of another vocabulary.

        The length of texts may be another. A tokenizer without a fingerprint, as `check` has, knows
        no vocabulary and passes.
        """
        outside = int(self.tokens.max(initial=0))
        if 0 < tokenizer.vocab_size <= outside:
            name = self.names[int(np.argmax(self.tokens.max(axis=1)))]
            raise UserError(
                f"tag list {self.path}: {name!r} has the token {outside}, and the vocabulary of "
                f"the tokenizer has {tokenizer.vocab_size}; {MAKE}"
            )
        if not tokenizer.fingerprint:
            return
        made_again = f"make it again with this tokenizer: {MAKE}"
        same = self.tokenizer == tokenizer.fingerprint
        made = "by an earlier version or altered" if same else "for another vocabulary"
        try:
            here = tokenize_names(self.names, tokenizer)
        except UserError as error:
            raise UserError(
                f"tag list {self.path} does not fit the tokenizer: {error}; {made_again}"
            ) from error
        for name, ids, tokens, mask in zip(
            self.names, here, self.tokens, self.token_mask, strict=True
        ):
            if ids != (stored := tokens[mask].tolist()):
                raise UserError(
                    f"tag list {self.path} was made {made}: the tokens of {name!r} are {stored} in "
                    f"it and {ids} by the tokenizer; {made_again}"
                )


def weigh(counts: Sequence[int]) -> Float[np.ndarray, " c"]:
    """Returns weights inversely proportional to the square root of frequency (IDEA §3.2).

    The paper does not give their scale. Here their mean is 1, so that a weighted loss has the same
    size as the plain one, whatever the corpus and the length of the list.
    """
    weights = np.asarray(counts, np.float64) ** -0.5
    return (weights / weights.mean()).astype(np.float32)


def tokenize_names(names: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Returns the ids of names, without those that the tokenizer puts at the ends of every text.

    They are the ids after a space, which RoBERTa's tokenizer makes part of a word: without it, the
    names of a text would run together. Names with the tokenizer's `unknown_id`, if it has one, are
    those that it cannot express, which is a UserError.
    """
    text, mask = tokenizer(["", *(f" {name}" for name in names)])
    ends, *rows = (ids[real].tolist() for ids, real in zip(text, mask, strict=True))
    unknown = getattr(tokenizer, "unknown_id", None)
    found = []
    for name, row in zip(names, rows, strict=True):
        if len(row) >= tokenizer.length:
            raise UserError(
                f"the tag {name!r} fills a text of {tokenizer.length} tokens: raise the length of "
                "the tokenizer or leave the tag out"
            )
        start = len(os.path.commonprefix([row, ends]))  # of lists, too
        end = len(row) - (len(ends) - start)
        ids = row[start:end]
        if row[end:] != ends[start:] or not ids or unknown in ids:
            raise UserError(
                f"the tokenizer cannot express the tag {name!r}: leave it out, or take a "
                "vocabulary that has its characters"
            )
        found.append(ids)
    return found


def pad_tokens(
    rows: Sequence[Sequence[int]],
) -> tuple[Int32[np.ndarray, "c m"], Bool[np.ndarray, "c m"]]:
    """Puts rows of ids of different lengths into one array padded with 0; says which are real."""
    token_mask = np.arange(max(map(len, rows))) < np.array([[len(row)] for row in rows])
    tokens = np.zeros(token_mask.shape, np.int32)
    tokens[token_mask] = [id for row in rows for id in row]
    return tokens, token_mask


def make_tag_list(
    names: Sequence[str],
    counts: Sequence[int],
    tokenizer: Tokenizer,
    removed: Sequence[str] = (),
    path: str = "",
) -> TagList:
    """Makes a tag list of names and counts, the most frequent first, for a model's tokenizer."""
    if not names:
        raise UserError(f"tag list {path}: has no tag; lower the least count, or remove fewer tags")
    padded = pad_tokens(tokenize_names(names, tokenizer))
    numbers = np.array(counts, np.int64), weigh(counts)
    return TagList(path, tuple(names), *numbers, *padded, tokenizer.fingerprint, tuple(removed))


def write_tag_list(tags: TagList, path: str, made_by: dict[str, Any]) -> None:
    """Writes a tag list as JSON, one tag per line; `made_by` tells readers of its making."""
    rows = zip(tags.names, tags.counts, tags.weights, tags.tokens, tags.token_mask, strict=True)
    entries = [
        {
            "name": name,
            "count": int(count),
            "weight": float(np.format_float_positional(weight)),
            "tokens": tokens[mask].tolist(),
        }
        for name, count, weight, tokens, mask in rows
    ]
    head = {"tokenizer": tags.tokenizer, "made_by": made_by, "removed": tags.removed}
    text = format_json(formats.stamp(KIND, head), {"tags": entries})
    write_whole(path, text.encode(errors="backslashreplace"))  # names of files may be in Latin-1


def read_tag_list(path: str) -> TagList:
    """Reads a tag list that `build_tags` wrote; a UserError says what is wrong with it."""
    try:
        content = read_json(path, "tag list ")
    except FileNotFoundError as error:
        raise UserError(f"tag list {path}: there is no such file; {MAKE}") from error
    if isinstance(content, dict):
        formats.check(KIND, content, path)
    if not isinstance(content, dict) or not isinstance(content.get("tags"), list):
        raise UserError(f"tag list {path}: is no tag list; {MAKE}")
    entries, removed = content["tags"], content.get("removed", [])
    if not entries:
        raise UserError(f"tag list {path}: has no tag; {MAKE}")
    tokenizer = content.get("tokenizer", "")
    if not _are_texts(removed) or not isinstance(tokenizer, str):
        raise UserError(
            f"tag list {path}: `removed` must be a list of names, and `tokenizer` a text; {MAKE}"
        )
    for number, entry in enumerate(entries):
        if fault := _find_fault(entry):
            raise UserError(f"tag list {path}: tag {number} {put_in_a_line(fault)}; {MAKE}")
    names = tuple(entry["name"] for entry in entries)
    if len(set(names)) < len(names):
        twice = next(name for name, count in collections.Counter(names).items() if count > 1)
        raise UserError(f"tag list {path}: {twice!r} is in it twice; {MAKE}")
    counts = np.array([entry["count"] for entry in entries], np.int64)
    weights = np.array([entry["weight"] for entry in entries], np.float32)
    padded = pad_tokens([entry["tokens"] for entry in entries])
    return TagList(path, names, counts, weights, *padded, tokenizer, tuple(removed))


def _find_fault(entry: Any) -> str:
    if not isinstance(entry, dict):
        return f"is {str(entry)[:40]!r}: it needs a name, a count, a weight and tokens"
    lacks = [field for field in ("name", "count", "weight", "tokens") if field not in entry]
    if lacks:
        return f"({entry.get('name')!r}) has no {lacks[0]}"
    name, count, weight, tokens = (entry[key] for key in ("name", "count", "weight", "tokens"))
    if not _are_texts([name]) or not name.strip():
        return f"has the name {name!r}; it must be a text"
    if not _is_number(count, int) or not 0 <= count < 2**63:
        return f"({name!r}) has the count {count!r}; it must be an integer of at least 0"
    if not _is_number(weight, int | float) or not 0 <= weight < WEIGHT_MAX:
        return f"({name!r}) has the weight {weight!r}; it must be a number of at least 0"
    if not isinstance(tokens, list) or not all(
        _is_number(token, int) and 0 <= token < 2**31 for token in tokens
    ):
        return f"({name!r}) has the tokens {tokens!r}; they must be ids of a vocabulary"
    return "" if tokens else f"({name!r}) has no tokens"


def _is_number(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _are_texts(values: Any) -> bool:
    """Returns whether values are a list of texts that UTF-8 can encode."""
    texts = isinstance(values, list) and all(isinstance(value, str) for value in values)
    return texts and not find_half("".join(values))
