"""RoBERTa's byte-level byte-pair encoding (Liu et al. 2019, §4.4) in plain Python."""

import re

from big_align.core.digests import fingerprint
from big_align.data.text.byte_pairs import CONTRACTIONS, BytePairTokenizer, character_class
from big_align.data.text.framed import Frame
from big_align.data.text.piece_files import read_ids, read_merges

START, PAD, END, UNKNOWN = "<s>", "<pad>", "</s>", "<unk>"
PUBLISHED = "RoBERTa is published with vocab.json and merges.txt"

# Unicode's white space, to which `\s` adds four control characters.
SPACES = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


class RobertaTokenizer(BytePairTokenizer):
    """The tokenizer of the published RoBERTa models: <s>, pieces, </s>, then <pad>.

    Texts are taken as they are: case, accents and repeated spaces count, and a word has other ids
    at the beginning of a text than after a space. A special token that is spelled out in a text is
    plain text, so that it cannot end the text. A byte without a piece of its own becomes <unk>; the
    published vocabulary has them all.

    Args:
      vocabulary: the published `vocab.json`, or transformers' `tokenizer.json`.
      merges: the published `merges.txt`, or the same `tokenizer.json`.
      length: ids per text; a longer one keeps its first pieces and </s>.
      shorten: what training keeps of a longer text: "truncate" its first ids, "random" ones, a
        "block" of them, or by "syntax" those of nouns first, then of adjectives and verbs.

    Raises:
      ValueError: a file is missing or is not what it should be, a merge makes a piece that the
        vocabulary lacks, or the length is below 3.
    """

    def __init__(self, vocabulary: str, merges: str, length: int, shorten: str = "truncate"):
        ids, pairs = read_vocabulary(vocabulary), list_merges(merges)
        for number, pair in enumerate(pairs, start=1):
            if "".join(pair) not in ids:
                raise ValueError(
                    f"merges: {merges!r}: merge {number}, {' '.join(pair)!r}, makes a piece that "
                    f"{vocabulary!r} lacks; both files must be of one model"
                )
        frame = Frame((ids[START],), (ids[END],), ids[PAD])
        super().__init__(ids, pairs, length, frame, shorten)
        self.unknown_id = ids[UNKNOWN]
        self._ascii_words = _words("A-Za-z", "0-9")  # over twice as fast
        self._any_words = _words(character_class("L"), character_class("N"))
        self.fingerprint = fingerprint(["roberta", length, sorted(ids.items()), pairs])

    def _split(self, text: str) -> list[str]:
        return (self._ascii_words if text.isascii() else self._any_words).findall(text)

    def _find_id(self, piece: str) -> int:
        return self._ids.get(piece, self.unknown_id)


def _words(letters: str, numbers: str) -> re.Pattern[str]:
    """Builds GPT-2's pattern (Radford et al. 2019) from the insides of two character classes.

    A text is split into contractions and runs of letters, of numbers or of other signs. Each run
    includes one space before it; if there are more, the others are a run of their own.
    """
    return re.compile(
        rf"{CONTRACTIONS}| ?[{letters}]+| ?[{numbers}]+| ?[^{SPACES}{letters}{numbers}]+"
        rf"|[{SPACES}]+(?![^{SPACES}])|[{SPACES}]+"
    )


def read_vocabulary(path: str) -> dict[str, int]:
    """Reads RoBERTa's `vocab.json` or `tokenizer.json`: ids by piece, special tokens included."""
    return read_ids(path, (START, PAD, END, UNKNOWN), PUBLISHED)


def list_merges(path: str) -> list[tuple[str, str]]:
    """Reads RoBERTa's `merges.txt` or `tokenizer.json`: pairs, earlier ones are merged first."""
    pairs = [tuple(line.split(" ")) for line in read_merges(path, PUBLISHED)]
    for number, pair in enumerate(pairs, start=1):
        if len(pair) != 2 or not all(pair):
            raise ValueError(
                f"merges: {path!r}: merge {number} is {' '.join(pair)!r}; it must be two pieces "
                "with a space between them"
            )
    return pairs
