"""Tag lists: the tags that a recognizer knows, how frequent they are, and their tokens."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int32, Int64

from big_align.data.text.tokenizers import Tokenizer
from big_align.errors import UserError

FORMAT = 1
MAKE = "python -m big_align.tools.build_tags makes one"


@dataclasses.dataclass(frozen=True, eq=False)
class TagList:
    """Tags, the most frequent first; the id of a tag is its position.

    Attributes:
      path: the file, for messages.
      names: what each tag is called, in lower case.
      counts: captions of the corpus that have the tag.
      weights: of the tags in the recognition loss (IDEA eq. 2), see `weigh`.
      tokens: the ids of each name without those at the start and end of a text, padded with 0.
      token_mask: which of `tokens` are real.
      tokenizer: the fingerprint of what made `tokens`.
      removed: the names of more frequent tags that were left out.
    """

    path: str
    names: tuple[str, ...]
    counts: Int64[np.ndarray, " c"]
    weights: Float[np.ndarray, " c"]
    tokens: Int32[np.ndarray, "c m"]
    token_mask: Bool[np.ndarray, "c m"]
    tokenizer: str
    removed: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    @property
    def fingerprint(self) -> str:
        """A hash of the names: what the ids of a batch mean."""
        return hashlib.sha256(json.dumps(self.names).encode()).hexdigest()

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Checks that the tokens are those of a vocabulary; the length of texts may be another.

        A tokenizer without a fingerprint, as `check` has, knows no vocabulary and passes.

        Raises:
          UserError: the list was made for another vocabulary.
        """
        if tokenizer.fingerprint in ("", self.tokenizer):
            return
        made_again = f"make it again with this tokenizer: {MAKE}"
        try:
            here = tokenize_names(self.names, tokenizer)
        except UserError as error:
            raise UserError(
                f"tag list {self.path} was made for another vocabulary: {error}; {made_again}"
            ) from error
        for name, ids, tokens, mask in zip(
            self.names, here, self.tokens, self.token_mask, strict=True
        ):
            if ids != (stored := tokens[mask].tolist()):
                raise UserError(
                    f"tag list {self.path} was made for another vocabulary: the tokens of {name!r} "
                    f"are {stored} in it and {ids} by the tokenizer; {made_again}"
                )


def weigh(counts: Sequence[int]) -> Float[np.ndarray, " c"]:
    """Returns weights inversely proportional to the square root of frequency (IDEA §3.2).

    The paper does not give their scale. Here their mean is 1, so that a weighted loss is of the
    size of the plain one, whatever the corpus and the length of the list.

    Args:
      counts: captions with each tag, at least 1.

    Returns:
      float32, of mean 1.
    """
    weights = np.asarray(counts, np.float64) ** -0.5
    return (weights / weights.mean()).astype(np.float32)


def tokenize_names(names: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Returns the ids of names, without those that the tokenizer puts at the ends of every text.

    Args:
      names: of tags.
      tokenizer: what it makes of "" stands at the start and end of every text. Names with its
        `unknown_id`, if it has one, are those that it cannot express.

    Raises:
      UserError: the tokenizer cannot express a name, or cuts it off.
    """
    text, mask = tokenizer(["", *names])
    ends, *rows = (ids[real].tolist() for ids, real in zip(text, mask, strict=True))
    unknown = getattr(tokenizer, "unknown_id", None)
    found = []
    for name, row in zip(names, rows, strict=True):
        if len(row) >= tokenizer.length:
            raise UserError(
                f"the tag {name!r} fills a text of {tokenizer.length} tokens: raise the length of "
                "the tokenizer or leave the tag out"
            )
        start = count_shared(row, ends)
        end = len(row) - (len(ends) - start)
        ids = row[start:end]
        if row[end:] != ends[start:] or not ids or unknown in ids:
            raise UserError(
                f"the tokenizer cannot express the tag {name!r}: leave it out, or take a "
                "vocabulary that has its characters"
            )
        found.append(ids)
    return found


def count_shared(one: list[int], other: list[int]) -> int:
    """Counts the ids with which both begin."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


def pad_tokens(
    rows: Sequence[Sequence[int]],
) -> tuple[Int32[np.ndarray, "c m"], Bool[np.ndarray, "c m"]]:
    """Lays ids of several lengths into one array, padded with 0, and says which are real."""
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
    """Makes a tag list.

    Args:
      names: of the tags, the most frequent first.
      counts: captions with each.
      tokenizer: the one that the model has.
      removed: names of more frequent tags that were left out.
      path: where it will be, for messages.

    Raises:
      UserError: there is no tag, or the tokenizer cannot express one.
    """
    if not names:
        raise UserError(f"tag list {path}: has no tag; lower the least count, or remove fewer tags")
    tokens, token_mask = pad_tokens(tokenize_names(names, tokenizer))
    return TagList(
        path,
        tuple(names),
        np.array(counts, np.int64),
        weigh(counts),
        tokens,
        token_mask,
        tokenizer.fingerprint,
        tuple(removed),
    )


def write_tag_list(tags: TagList, path: str, made_by: dict[str, Any]) -> None:
    """Writes a tag list as JSON, a tag a line.

    Args:
      tags: the list.
      path: the file to write.
      made_by: what it was made of and how, for whoever opens the file.
    """
    rows = zip(tags.names, tags.counts, tags.weights, tags.tokens, tags.token_mask, strict=True)
    lines = [
        json.dumps(
            {
                "name": name,
                "count": int(count),
                "weight": float(np.format_float_positional(weight)),
                "tokens": tokens[mask].tolist(),
            },
            ensure_ascii=False,
        )
        for name, count, weight, tokens, mask in rows
    ]
    head = {
        "format": FORMAT,
        "tokenizer": tags.tokenizer,
        "made_by": made_by,
        "removed": tags.removed,
    }
    fields = [f' "{key}": {json.dumps(value, ensure_ascii=False)}' for key, value in head.items()]
    fields.append(' "tags": [\n  ' + ",\n  ".join(lines) + "\n ]")
    with open(path, "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(fields) + "\n}\n")


def read_tag_list(path: str) -> TagList:
    """Reads a tag list.

    Args:
      path: a file that `build_tags` wrote.

    Raises:
      UserError: the file is missing, no JSON, of another format, without tags, or a tag lacks a
        field or stands twice.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except FileNotFoundError as error:
        raise UserError(f"tag list {path}: there is no such file; {MAKE}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"tag list {path}: cannot be read as JSON: {error}") from error
    if not isinstance(content, dict) or "tags" not in content:
        raise UserError(f"tag list {path}: is no tag list; {MAKE}")
    if content.get("format") != FORMAT:
        raise UserError(
            f"tag list {path}: its format is {content.get('format')!r}, not {FORMAT}; {MAKE}"
        )
    entries = content["tags"]
    if not entries:
        raise UserError(f"tag list {path}: has no tag; {MAKE}")
    try:
        names = tuple(str(entry["name"]) for entry in entries)
        counts = np.array([int(entry["count"]) for entry in entries], np.int64)
        weights = np.array([float(entry["weight"]) for entry in entries], np.float32)
        tokens, token_mask = pad_tokens([[int(id) for id in entry["tokens"]] for entry in entries])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"tag list {path}: a tag needs a name, a count, a weight and tokens: {error!r}; {MAKE}"
        ) from error
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"tag list {path}: {twice!r} stands in it twice; {MAKE}")
    if not token_mask.any(axis=1).all():
        bare = names[int(np.argmin(token_mask.any(axis=1)))]
        raise UserError(f"tag list {path}: {bare!r} has no tokens; {MAKE}")
    return TagList(
        path, names, counts, weights, tokens, token_mask,
        str(content.get("tokenizer", "")), tuple(content.get("removed", ())),
    )  # fmt: skip
