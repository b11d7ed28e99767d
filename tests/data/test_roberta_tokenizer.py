import json
import pathlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from big_align.data.text.byte_pairs import byte_letters, character_class
from big_align.data.text.roberta_tokenizer import RobertaTokenizer
from tests.data.byte_pair_files import SPECIALS, write_byte_pairs

MERGES = ["a t", "c at", "Ġ cat", "' s", "Ġ Ġ", "Ã ©"]


def write_files(folder: pathlib.Path, merges=MERGES, leave_out=()) -> tuple[str, str]:
    """Writes the four special tokens, the bytes from 4 on and the merged pieces from 260 on."""
    pieces = [*byte_letters().values(), *(merge.replace(" ", "") for merge in merges)]
    kept = [*SPECIALS, *(piece for piece in pieces if piece not in leave_out)]
    ids = {piece: number for number, piece in enumerate(kept)}
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    return str(folder / "vocab.json"), str(folder / "merges.txt")


def spell(tokenizer: RobertaTokenizer, text: str) -> list[str]:
    names = {number: piece for piece, number in tokenizer._ids.items()}
    ids, mask = tokenizer([text])
    assert (np.diff(mask[0].astype(int)) <= 0).all()  # real tokens first
    assert (ids[~mask] == 1).all()
    return [names[number] for number in ids[mask].tolist()]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> RobertaTokenizer:
    return RobertaTokenizer(*write_files(tmp_path_factory.mktemp("files")), length=40)


@pytest.mark.parametrize(
    "text, pieces",
    {
        "cat cat": "cat Ġcat",  # a word has another piece behind a space
        "Cat": "C at",
        "cat's 's": "cat 's Ġ ' s",  # behind a space there are no contractions
        "cat'S": "cat ' S",
        "cat  cat": "cat Ġ Ġcat",  # of two spaces the first stands alone
        "cat   ": "cat ĠĠ Ġ",
        "\tcat\n\n": "ĉ cat Ċ Ċ",
        "é": "Ã©",
        "è": "Ã ¨",
        "42cat": "4 2 cat",
        "": "",
        "<s>": "< s >",  # a text cannot spell a special token
        "</s> <pad>": "< / s > Ġ < p a d >",
    }.items(),
)
def test_pieces_by_hand(tokenizer, text, pieces):
    assert spell(tokenizer, text) == ["<s>", *pieces.split(), "</s>"]


def test_ids_by_hand(tokenizer):
    """Bytes count from `!`, which is 4, on; the merges follow from 260 on."""
    text, text_mask = tokenizer(["cat! cat"])
    assert text[text_mask].tolist() == [0, 261, 4, 262, 2]
    assert (text.dtype, text_mask.dtype, text.shape) == (np.int32, bool, (1, 40))
    assert (tokenizer.vocab_size, tokenizer.length) == (266, 40)
    assert tokenizer([])[0].shape == (0, 40)


def test_the_end_is_kept_when_a_text_is_cut(tmp_path):
    text, text_mask = RobertaTokenizer(*write_files(tmp_path), length=4)(["cat!!!", "cat!", "cat"])
    assert text.tolist() == [[0, 261, 4, 2], [0, 261, 4, 2], [0, 261, 2, 1]]
    assert text_mask.sum(1).tolist() == [4, 4, 3]


def test_merges_go_by_their_rank(tmp_path):
    """By hand: of a b c, the pair that is listed first is merged, wherever it stands."""
    first = RobertaTokenizer(*write_files(tmp_path, ["b c", "a b", "a bc"]), length=9)
    assert spell(first, "abc ab") == ["<s>", "abc", "Ġ", "ab", "</s>"]
    second = RobertaTokenizer(*write_files(tmp_path, ["a b", "b c", "a bc"]), length=9)
    assert spell(second, "abcbc") == ["<s>", "ab", "c", "bc", "</s>"]


def test_a_byte_without_a_piece_is_unknown(tmp_path):
    tokenizer = RobertaTokenizer(*write_files(tmp_path, leave_out=["x", "Ã", "Ã©"], merges=[]), 9)
    assert spell(tokenizer, "axé") == ["<s>", "a", "<unk>", "<unk>", "©", "</s>"]


def test_any_text_is_encoded_without_loss(tmp_path):
    tokenizer = RobertaTokenizer(*write_byte_pairs(tmp_path), length=200)
    bytes_of = {letter: byte for byte, letter in byte_letters().items()}
    controls = "".join(map(chr, range(300)))
    for text in (
        "½ + Ⅷ = 3²",
        " 日本\u3000नमस्ते é ",
        "👩‍🚀🇩🇪",
        "a_b__c'S 's\r\n\t x\x1cy",
        controls[:150],
    ):
        letters = "".join(spell(tokenizer, text)[1:-1])
        assert bytes(bytes_of[letter] for letter in letters) == text.encode()


def test_ascii_texts_have_the_same_words_under_both_patterns(tokenizer):
    generator = np.random.default_rng(0)
    signs = list(" \t\n\x0b\x1c\x1f\x00'`_-.aZ09") + ["'s", "'ll", "  "]
    for _ in range(300):
        text = "".join(generator.choice(signs, 12))
        assert tokenizer._ascii_words.findall(text) == tokenizer._any_words.findall(text)
        assert "".join(tokenizer._any_words.findall(text)) == text


def test_character_classes():
    """Decimal digits of ASCII, and of the letters the modifiers, which come in few ranges."""
    assert character_class("Nd").startswith("0-9\u0660-\u0669")
    assert character_class("Zl", "Zp") == "\u2028-\u2029"


def test_one_file_of_transformers_is_the_same_as_two(tmp_path):
    """`tokenizer.json` has merges as pairs or as text; added tokens have ids behind the others."""
    vocabulary, merges = write_files(tmp_path)
    two = RobertaTokenizer(vocabulary, merges, 9)
    model = {"vocab": json.loads(pathlib.Path(vocabulary).read_text())}
    prints, path = [], tmp_path / "tokenizer.json"
    for listed in (MERGES, [merge.split(" ") for merge in MERGES]):
        whole = {"added_tokens": [], "model": model | {"merges": listed}}
        path.write_text(json.dumps(whole))
        prints.append(RobertaTokenizer(str(path), str(path), 9).fingerprint)
    assert prints == [two.fingerprint] * 2
    whole["added_tokens"] = [{"content": "<s>", "id": 0}, {"content": "<mask>", "id": 266}]
    path.write_text(json.dumps(whole))
    assert RobertaTokenizer(str(path), str(path), 9).vocab_size == 267


def test_fingerprints_change_with_whatever_changes_ids(tmp_path):
    prints = [RobertaTokenizer(*write_files(tmp_path), length).fingerprint for length in (8, 9)]
    for change in ([*MERGES[1:], MERGES[0]], MERGES[:-1]):
        prints.append(RobertaTokenizer(*write_files(tmp_path, change), 9).fingerprint)
    vocabulary, merges = write_files(tmp_path)
    ids = json.loads(pathlib.Path(vocabulary).read_text())
    ids["a"], ids["b"] = ids["b"], ids["a"]
    (tmp_path / "swapped.json").write_text(json.dumps(ids))
    prints.append(RobertaTokenizer(str(tmp_path / "swapped.json"), merges, 9).fingerprint)
    assert len(set(prints)) == 5 and all(len(value) == 64 for value in prints)
    assert RobertaTokenizer(vocabulary, merges, 9).fingerprint == prints[1]


def test_threads_draw_the_same_as_one(tmp_path):
    tokenizer = RobertaTokenizer(*write_byte_pairs(tmp_path), length=12)
    texts = [f"the cat {n} isn't é" for n in range(200)]
    whole = tokenizer(texts)
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(tokenizer, [[text] for text in texts]))
    for column in range(2):
        np.testing.assert_array_equal(np.concatenate([p[column] for p in parts]), whole[column])


@pytest.mark.parametrize(
    "vocabulary, message",
    [
        ("<s>", r"vocab.json' cannot be read as a vocabulary: it .*; RoBERTa is published"),
        ('["<s>"]', r"vocab.json' cannot be read as a vocabulary"),
        ('{"model": {"type": "WordPiece"}}', "as a vocabulary: there is no 'vocab'"),
        ('{"<s>": 0, "a": 1}', r"vocab.json' lacks <pad>, </s>, <unk>; RoBERTa is published"),
        (
            '{"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 5}',
            "gives 'a' the id 5; the ids of its 5 pieces must be 0 to 4, each once",
        ),
        (
            '{"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 1}',
            "gives '<unk>' the id 1 of '<pad>'; the ids of its 4 pieces must be 0 to 3, each once",
        ),
    ],
)
def test_vocabularies_are_checked(tmp_path, vocabulary, message):
    path, merges = write_files(tmp_path)
    pathlib.Path(path).write_text(vocabulary)
    with pytest.raises(ValueError, match=message):
        RobertaTokenizer(path, merges, 9)


@pytest.mark.parametrize(
    "lines, message",
    [
        ("a b c\n", "merges.txt': merge 1 is 'a b c'; it must be two pieces with a space"),
        ("a t\n\nc at\n", "merge 2 is ''"),
        ("a t\nx y\n", "merge 2, 'x y', makes a piece that '.*vocab.json' lacks; both files must"),
    ],
)
def test_merges_are_checked(tmp_path, lines, message):
    vocabulary, merges = write_files(tmp_path)
    for version in ("", "#version: 0.2\n"):
        pathlib.Path(merges).write_text(version + lines)
        with pytest.raises(ValueError, match=message):
            RobertaTokenizer(vocabulary, merges, 9)


def test_missing_files_and_short_lengths_are_errors(tmp_path):
    vocabulary, merges = write_files(tmp_path)
    with pytest.raises(ValueError, match="vocabulary: no file '.*none.json'; RoBERTa is published"):
        RobertaTokenizer(str(tmp_path / "none.json"), merges, 9)
    with pytest.raises(ValueError, match="merges: no file '.*none.txt'; RoBERTa is published with"):
        RobertaTokenizer(vocabulary, str(tmp_path / "none.txt"), 9)
    with pytest.raises(ValueError, match="merges: .*vocab.json' cannot be read as merges"):
        RobertaTokenizer(vocabulary, vocabulary, 9)
    with pytest.raises(ValueError, match="length = 2 must be at least 3"):
        RobertaTokenizer(vocabulary, merges, 2)
