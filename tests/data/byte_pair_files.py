"""Small files of a byte-level byte-pair encoding, made as RoBERTa's were."""

import collections
import json
import pathlib
import random
import re

from big_align.data.text.byte_pairs import byte_letters

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
CORPUS = [
    "A photo of the dog's red ball, and the dog isn't there.",
    "a photograph of two dogs in the snow in 2019 ... 12345 photos!!",
    "They've said they'll go; I'm sure we're there and she'd know 'tis so",
    "café crème brûlée, naïve cafés; 日本の写真 日本",
    "The the THE of an in on  two  spaces   three\tand a tab\tand\n\nlines\n",
    "smile \U0001f600 \U0001f600\U0001f600 ❤\ufe0f ½ Ⅷ ² नमस\u094dत\u0947",
]


def learn_merges(texts: list[str], count: int) -> list[tuple[str, str]]:
    """Learns merges (Sennrich et al. 2016): the most frequent pair of pieces, again and again."""
    letters = byte_letters()
    spelled = (
        tuple(letters[byte] for byte in word.encode())
        for text in texts
        for word in re.findall(r" ?\w+| ?[^\w\s]+|\s+", text)
    )
    words, merges = collections.Counter(spelled), []
    while len(merges) < count:
        pairs = collections.Counter()
        for word, times in words.items():
            for pair in zip(word, word[1:], strict=False):
                pairs[pair] += times
        if not pairs:
            break
        best = max(sorted(pairs), key=pairs.__getitem__)
        merges.append(best)
        words = collections.Counter({_join(word, best): n for word, n in words.items()})
    return merges


def _join(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    joined, place = [], 0
    while place < len(word):
        step = 2 if word[place : place + 2] == pair else 1
        joined.append("".join(word[place : place + step]))
        place += step
    return tuple(joined)


def write_byte_pairs(
    folder: pathlib.Path, texts: list[str] = CORPUS, count: int = 300
) -> tuple[str, str]:
    """Writes `vocab.json`, whose ids do not follow the merges, and `merges.txt`."""
    merges = learn_merges(texts, count)
    pieces = [*byte_letters().values(), *dict.fromkeys(map("".join, merges))]
    random.Random(0).shuffle(pieces)
    vocabulary, merges_file = folder / "vocab.json", folder / "merges.txt"
    ids = {piece: number for number, piece in enumerate((*SPECIALS, *pieces, "<mask>"))}
    vocabulary.write_text(json.dumps(ids), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    merges_file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(vocabulary), str(merges_file)
