"""Word pieces in plain Python are those of tensorflow-text: their ids, and the learned ones."""

import collections
import random
import sys
import tarfile
import unicodedata

import pytest

from big_align.data.text import vocabulary
from big_align.data.text.clean_texts import clean_for_bert
from big_align.data.text.tokenizers import SPECIAL_TOKENS
from big_align.data.text.wordpieces import PlainSplitter, cut_word, make_splitter

PIECES = [
    *SPECIAL_TOKENS, *"abcdef#[]^-.東京한ギäб", *(f"##{c}" for c in "abcdef한ギäб"),
    "cls", "##abc", "un", "##aff", "##able", "nai", "##ve", "pad", "unk", "a" * 60, "##" + "b" * 60,
]  # fmt: skip
NASTY = (
    "", " ", "\t\n", "\0", "a\0b", "a\x7fb\x85c", "a\u200bb", "a\u00adb", "\ufeffa", "a\ufffdb",
    "[CLS] abc [SEP]", "[cls][PAD]", "[UNK] [MASK]", "##a a##b ##", "#abc", "a]b^c\\d[e-f",
    "a\\d--a", "東京abc한ギ", "東 京", "龘𠀀", "ab" * 49, "ab" * 50, "ab" * 51, "ä" * 50, "ä" * 51,
    "a" * 100, "a" * 101, "abc " * 400, "." * 400, "a\u0301\u0308b", "e\u0301\u0327", "\u0301",
    "ﬁ", "👩\u200d🍳 a", "❤\ufe0f", "🏳\ufe0f\u200d🌈", "👍🏽ab", "İstanbul", "ΑΣ", "STRAẞE ß",
    "naïve", "½²", "a\u2028b\u2029c\u3000d", "「東」、。", "a—b…“c”", "\U0001f9d1\U0001f3fb",
    "\U000e0001a", "ａｂｃ", "\ue000a", "\U0010ffffa", "نص عربي", "हिन्दी", "a\u034fb", "\u1d165a",
    "a¨b´c`d~e$f+g<h=i>j|k",
)  # fmt: skip
"""Texts of which tokenizers may disagree."""


def split_both(pieces, texts, lowercase=True):
    """Returns the ids of each text, in plain Python and by tensorflow-text."""
    pytest.importorskip("tensorflow_text")
    clean = [clean_for_bert(text, lowercase) for text in texts]
    plain = PlainSplitter({piece: number for number, piece in enumerate(pieces)}, 1)
    found = []
    for splitter in (plain, make_splitter(pieces, 1)):
        ids, starts = (each.tolist() for each in splitter(clean))
        found.append([ids[a:b] for a, b in zip(starts, starts[1:], strict=False)])
    return found


def check_both(pieces, texts, lowercase=True):
    ours, theirs = split_both(pieces, texts, lowercase)
    assert len(ours) == len(texts)
    rows = zip(texts, ours, theirs, strict=True)
    assert [(text, a, b) for text, a, b in rows if a != b] == []


@pytest.mark.parametrize("lowercase", [True, False])
def test_nasty_texts_have_the_ids_of_tensorflow_text(lowercase):
    rng = random.Random(0)
    characters = "abcdef#[]^-. 東京한ギäб\u0301\u200d\u200b❤½ABÄ"
    texts = ["".join(rng.choices(characters, k=rng.randint(0, 40))) for _ in range(2000)]
    check_both(PIECES, [*NASTY, *texts], lowercase)


@pytest.mark.slow
@pytest.mark.parametrize("lowercase", [True, False])
def test_every_character_has_the_ids_of_tensorflow_text(lowercase):
    """Those that Python's Unicode has, between letters."""
    codes = (code for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000)
    known = [chr(code) for code in codes if unicodedata.category(chr(code)) != "Cn"]
    assert len(known) > 280_000
    check_both(PIECES, [f"a{character}b" for character in known], lowercase)


@pytest.mark.slow
@pytest.mark.parametrize("lowercase", [True, False])
def test_real_texts_have_the_ids_of_tensorflow_text(data_dir, lowercase):
    texts = (data_dir / "text" / "alt_texts.txt").read_text().splitlines()
    for path in sorted(data_dir.glob("*/*.tar")):
        with tarfile.open(path) as tar:
            names = [each for each in tar if each.name.endswith((".txt", ".json"))]
            texts += [tar.extractfile(each).read().decode() for each in names]
    assert len(texts) > 20_000
    pieces = (data_dir / "text" / "bert-base-uncased-vocab.txt").read_text().splitlines()
    check_both(["[PAD]", "[UNK]", *(set(pieces) - {"[PAD]", "[UNK]"})], texts, lowercase)


def test_words_are_cut_from_the_left():
    pieces = {"un", "##aff", "##able", "##a", "##ff", "a"}
    assert cut_word("unaffable", pieces, 9) == ["un", "##aff", "##able"]
    assert cut_word("unaffable", pieces, 2) == []  # of at most two characters: no ##b, no ##l
    assert cut_word("unaff", pieces, 2) == ["un", "##a", "##ff"]
    assert cut_word("aun", pieces, 9) == cut_word("b", pieces, 9) == cut_word("", pieces, 9) == []


def test_the_pieces_that_reach_a_threshold_are_those_of_tensorflow_texts_learner():
    name = "tensorflow_text.tools.wordpiece_vocab.wordpiece_tokenizer_learner_lib"
    learner = pytest.importorskip(name)
    parameters = learner.Params(None, None, 4, None, 50, None, 0, None, True, "##", [])
    rng = random.Random(1)
    lengths = collections.Counter()
    for _ in range(200):
        letters = "abcde"[: rng.randint(1, 5)]
        stems = ["".join(rng.choices(letters, k=rng.randint(1, 6))) for _ in range(12)]
        counts = collections.Counter(rng.choice(stems) + rng.choice(stems) for _ in range(60))
        words, threshold = counts.most_common(), rng.randint(1, 12)
        theirs = learner.learn_with_thresh(words, threshold, parameters)
        ours = vocabulary.list_frequent(words, threshold)
        assert ours == [piece for piece in theirs if len(piece.removeprefix("##")) > 1]
        lengths[len(ours)] += 1
    assert len(lengths) > 20
