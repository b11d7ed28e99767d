import gzip
import json
import pathlib
from concurrent.futures import ThreadPoolExecutor

import fsspec
import numpy as np
import pytest

from big_align.data.labels.classes import ClassList, read_classes, write_classes
from big_align.data.text import clip_tokenizer
from big_align.data.text.clip_tokenizer import clean_text
from big_align.data.text.roberta_tokenizer import RobertaTokenizer
from big_align.data.text.tokenizers import (
    ClassNameTokenizer,
    ClipTokenizer,
    WordPieceTokenizer,
    WordTokenizer,
)
from big_align.data.text.word_counts import count_texts
from tests.data.byte_pair_files import write_byte_pairs

PIECES = (
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]",
    "un", "##aff", "##able", "##a", "##ff", "a", "cat", "the", "##s", "!", "naive",
)  # fmt: skip


def write_pieces(tmp_path, pieces=PIECES, name="vocabulary.txt") -> str:
    (tmp_path / name).write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return str(tmp_path / name)


@pytest.fixture(scope="session")
def clip(data_dir) -> ClipTokenizer:
    return ClipTokenizer(str(data_dir / "text" / "clip_bpe_simple_vocab_16e6.txt.gz"))


def real(tokenizer, text: str) -> list[int]:
    ids, mask = tokenizer([text])
    assert (np.diff(mask[0].astype(int)) <= 0).all()  # real tokens first
    assert not ids[~mask].any()
    return ids[mask].tolist()


def test_words():
    tokenizer = WordTokenizer(("cat", "dog"), length=4)
    assert real(tokenizer, "Cat  fish DOG") == [2, 3, 1, 4]
    assert real(tokenizer, "dog dog dog dog dog") == [2, 4, 4, 4]
    assert real(tokenizer, "") == [2]
    assert tokenizer.vocab_size == 5
    assert tokenizer.pieces([1, 3, 4]) == ["[UNK]", "cat", "dog"]
    cases = (
        (("a", "A"), "a' is there twice"),
        (("é", "e\u0301"), "é' is there"),
        (("a b",), "'a b' is"),
    )
    for words, message in cases:
        with pytest.raises(ValueError, match=message):
            WordTokenizer(words, length=4)


def test_words_beside_signs_are_found():
    """Of a word with signs, the longest words of the vocabulary are taken; a sign may be a word."""
    tokenizer = WordTokenizer(("cat", "T-shirt", "shirt", "!", "café", "का"), length=12)
    assert real(tokenizer, 'a "cat", (t-shirt). Cafe\u0301!') == [2, 1, 3, 4, 7, 6]
    assert real(tokenizer, "t-cat red-shirt cat's ...") == [2, 1, 3, 1, 5, 3, 1]
    assert real(tokenizer, "cat\u200bcat\u00a0cat का। काम") == [2, 3, 3, 3, 8, 1]
    assert real(tokenizer, "!" * 999) == [2, *[6] * 11]


def test_word_pieces_are_the_longest_from_the_left(tmp_path):
    """By hand: `unaffable` is un ##aff ##able, `unaff` un ##aff; `cab` has no piece for its b."""
    tokenizer = WordPieceTokenizer(write_pieces(tmp_path), length=10)
    assert real(tokenizer, "the unaffable cats!") == [2, 12, 5, 6, 7, 11, 13, 14, 3]
    assert real(tokenizer, "unaff cab") == [2, 5, 6, 1, 3]
    assert real(tokenizer, "Naïve") == [2, 15, 3]
    assert real(tokenizer, "") == [2, 3]
    assert (tokenizer.vocab_size, tokenizer.length) == (16, 10)


def test_word_pieces_keep_the_end_when_cut(tmp_path):
    tokenizer = WordPieceTokenizer(write_pieces(tmp_path), length=5)
    text, text_mask = tokenizer(["the cat a cat the", "the cat a", "cat"])
    assert text.tolist() == [[2, 12, 11, 10, 3], [2, 12, 11, 10, 3], [2, 11, 3, 0, 0]]
    assert text_mask.sum(1).tolist() == [5, 5, 3]
    assert (text.dtype, text_mask.dtype) == (np.int32, bool)


def test_case_is_kept_on_request(tmp_path):
    path = write_pieces(tmp_path, [*PIECES, "Cat"])
    assert real(WordPieceTokenizer(path, 10, lowercase=False), "Cat cat The") == [2, 16, 11, 1, 3]


def test_special_tokens_may_stand_anywhere(tmp_path):
    pieces = ["cat", "[SEP]", "[UNK]", "[CLS]", "[PAD]", "[MASK]"]
    text, text_mask = WordPieceTokenizer(write_pieces(tmp_path, pieces), 5)(["cat dog"])
    assert text.tolist() == [[3, 0, 2, 1, 4]] and text_mask.tolist() == [[True] * 4 + [False]]


def test_bert_ids(data_dir):
    """Published ids of bert-base-uncased."""
    tokenizer = WordPieceTokenizer(str(data_dir / "text" / "bert-base-uncased-vocab.txt"), 64)
    assert tokenizer.vocab_size == 30522
    ids = [101, 7592, 1010, 2026, 3899, 2003, 10140, 102]
    assert real(tokenizer, "Hello, my dog is cute") == ids
    ids = [101, 14477, 20961, 3468, 7861, 8270, 4667, 2015, 102]
    assert real(tokenizer, "unaffable embeddings") == ids


BERT_IDS = {
    "ein Hund auf der Straße": [16417, 15876, 4859, 21200, 4315, 2358, 27807],
    "GROSSER STRAẞE": [7977, 2121, 2358, 27807],
    "a 1½ year old girl": [1037, 1015, 13714, 2095, 2214, 2611],
    "ΔΡΟΜΟΣ δρόμος": [1158, 29732, 29730, 29728, 29730, 29733, 1158, 29732, 29730, 29728, 15297],
    "ＡＢＣ ﬁsh № 5 m² ™": [100, 1984, 4095, 1578, 1019, 7030, 1580],
    "co\u00adoperate zero\u2060width \ufeffdog": [17654, 5717, 9148, 11927, 2232, 3899],
    "Café naïve Ελλάδα İstanbul":
        [7668, 15743, 1159, 29727, 29727, 14608, 29722, 14608, 9960],
    "two\twords\nand\x0emore\x00": [2048, 2616, 1998, 5974],
    "\U0001f469\u200d\U0001f373 cooks 東京 at noon": [100, 26929, 1879, 1755, 2012, 11501],
}  # fmt: skip
"""What the tokenizers library of Hugging Face gives, with the vocabulary of bert-base-uncased."""


def test_bert_ids_of_texts_beyond_ascii(data_dir):
    tokenizer = WordPieceTokenizer(str(data_dir / "text" / "bert-base-uncased-vocab.txt"))
    for text, ids in BERT_IDS.items():
        assert real(tokenizer, text) == [101, *ids, 102], text


def test_words_are_counted_as_the_tokenizer_has_them():
    for lowercase in (True, False):
        words = count_texts(["Straße co\u00adop STRASSE ΣΑΣ"], lowercase)[""].words
        expected = ["straße", "coop", "strasse", "σασ"]
        assert list(words) == (expected if lowercase else ["Straße", "coop", "STRASSE", "ΣΑΣ"])


def test_vocabulary_files_are_checked(tmp_path):
    with pytest.raises(ValueError, match="no file '.*none.txt'; .*build_vocab"):
        WordPieceTokenizer(str(tmp_path / "none.txt"))
    with pytest.raises(ValueError, match=r"lacks \[CLS\], \[SEP\]; .*build_vocab"):
        WordPieceTokenizer(write_pieces(tmp_path, ["[PAD]", "[UNK]", "cat"]))
    with pytest.raises(ValueError, match="length = 2"):
        WordPieceTokenizer(write_pieces(tmp_path), length=2)
    with pytest.raises(ValueError, match="vocabulary: '.*long.txt' cannot be used: .*256"):
        WordPieceTokenizer(write_pieces(tmp_path, [*PIECES, "a" * 300], "long.txt"))
    for name, data in (("x.txt", b"[PAD]\n\x80"), ("x.json", b"{"), ("y.json", b'{"model": {}}')):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=f"{name}' cannot be read as a vocabulary: "):
            WordPieceTokenizer(str(tmp_path / name))


def test_a_vocabulary_in_a_bucket_reads_as_a_local_one(tmp_path, data_dir):
    roberta = write_byte_pairs(tmp_path)
    clip = data_dir / "text" / "clip_bpe_simple_vocab_16e6.txt.gz"
    files = {
        WordPieceTokenizer: [write_pieces(tmp_path)],
        ClipTokenizer: [str(clip)],
        RobertaTokenizer: roberta,
    }
    for tokenizer, paths in files.items():
        there = [f"memory://words/{path.rpartition('/')[2]}" for path in paths]
        for path, name in zip(paths, there, strict=True):
            fsspec.filesystem("memory").pipe(name, pathlib.Path(path).read_bytes())
        local, remote = tokenizer(*paths, length=9), tokenizer(*there, length=9)
        assert remote.fingerprint == local.fingerprint
        with pytest.raises(ValueError, match="no file 'memory://words/none.json'; "):
            tokenizer(*["memory://words/none.json"] * len(paths), length=9)


def test_merges_that_end_early_are_told(tmp_path):
    path = tmp_path / "merges.txt.gz"
    path.write_bytes(gzip.compress(b"a b\n" * 1000)[:-9])
    with pytest.raises(ValueError, match="merges.txt.gz' cannot be read as merges"):
        ClipTokenizer(str(path))


def test_clip_ids(clip):
    """The ids that CLIP's own tokenizer gives."""
    assert clip.vocab_size == 49408
    assert real(clip, "a photo of a cat") == [49406, 320, 1125, 539, 320, 2368, 49407]
    assert real(clip, "Hello   World!") == [49406, 3306, 1002, 256, 49407]
    assert real(clip, "") == [49406, 49407]
    assert real(clip, "it's") == [49406, 585, 568, 49407] == real(clip, "it\u2019s")
    assert len(real(clip, "2024")) == 6  # digits stand alone


def test_clip_keeps_the_end_when_cut(data_dir, clip):
    short = ClipTokenizer(str(data_dir / "text" / "clip_bpe_simple_vocab_16e6.txt.gz"), length=5)
    text, text_mask = short(["a photo of a cat", "a cat"])
    assert text.tolist() == [[49406, 320, 1125, 539, 49407], [49406, 320, 2368, 49407, 0]]
    assert text_mask.sum(1).tolist() == [5, 4]
    assert short.fingerprint != clip.fingerprint


def test_clip_encodes_any_text_without_loss(clip):
    """The letters of the pieces spell the bytes of the cleaned text, spaces apart."""
    names = {number: piece for piece, number in clip._ids.items()}
    letters = {letter: byte for byte, letter in clip._letters.items()}
    for text in ("½ + Ⅷ = 3²", "日本 नमस्ते é", "👩‍🚀🇩🇪", "a_b__c'S <|endoftext|> 's"):
        pieces = "".join(names[i] for i in real(clip, text)[1:-1]).replace("</w>", "")
        wanted = clean_text(text).replace(" ", "").encode()
        assert bytes(letters[letter] for letter in pieces) == wanted


def test_a_caption_cannot_spell_the_end(clip):
    assert real(clip, "a <|endoftext|> b").count(49407) == 1


def test_clip_cleaning():
    assert clean_text(" &lt;B&gt;  &amp;amp; \n x ") == "<b> & x"
    assert clean_text("“ﬁne” ＡＢＣ！ cafe\u0301") == '"fine" abc! café'
    # What ftfy 6.3.1 makes of these.
    for text, clean in (
        ("ﾊﾞﾗの花 ￥500", "バラの花 ¥500"),
        ("\ufeffa dog\x00 runs\x07", "a dog runs"),
        ("a \x1b[31mred\x1b[0m dog", "a red dog"),
        ("Ĳsselmeer ǆungla ŉ", "ijsselmeer džungla 'n"),
        ("wait\x85 \x93well\x94", 'wait… "well"'),
        ("&amp;amp;lt;", "<"),
        ("<b> &amp;amp;lt;", "<b> &lt;"),
    ):
        assert clean_text(text) == clean


def test_merges_files_are_checked(tmp_path):
    with pytest.raises(ValueError, match="no file"):
        ClipTokenizer(str(tmp_path / "none.gz"))
    (tmp_path / "x.gz").write_bytes(b"plain")
    with pytest.raises(ValueError, match="cannot be read as merges"):
        ClipTokenizer(str(tmp_path / "x.gz"))
    (tmp_path / "y.gz").write_bytes(gzip.compress(b"#version\na b\n"))
    with pytest.raises(ValueError, match="does not hold 48894 pairs"):
        ClipTokenizer(str(tmp_path / "y.gz"))
    (tmp_path / "z.gz").write_bytes(gzip.compress(bytes(2**26), 1))
    with pytest.raises(ValueError, match="z.gz' cannot be read .*it has more than 33554432 bytes"):
        ClipTokenizer(str(tmp_path / "z.gz"))


def test_the_ids_of_clip_are_those_of_its_merges(tmp_path, data_dir):
    """Whatever a `tokenizer.json` says about its ids is what the tokenizer does, or is refused."""
    published = str(data_dir / "text" / "clip_bpe_simple_vocab_16e6.txt.gz")
    pairs = clip_tokenizer.list_merges(published)
    ids = {piece: number for number, piece in enumerate(clip_tokenizer.list_pieces(pairs))}

    def write(ids, pairs=pairs):
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps({"model": {"vocab": ids, "merges": list(map(list, pairs))}}))
        return ClipTokenizer(str(path), 9)

    assert write(ids).fingerprint == ClipTokenizer(published, 9).fingerprint
    swapped = ids | {"a": ids["b"], "b": ids["a"]}
    with pytest.raises(ValueError, match="gives '[ab]' the id .*; by the merges it is "):
        write(swapped)
    with pytest.raises(ValueError, match="gives 'a' the id 49500; the ids of its 49408 pieces"):
        write(ids | {"a": 49500})
    with pytest.raises(ValueError, match="has the piece .* twice, with the ids 512 and 513"):
        write(ids, [pairs[0], *pairs[:-1]])


def write_classes_named(tmp_path, names, descriptions=None, ids=None) -> str:
    blank = ("",) * len(names)
    path = str(tmp_path / f"{'-'.join(names)}.json")
    write_classes(ClassList(names, descriptions or blank, ids or blank), path, "a test")
    return path


def test_a_class_name_becomes_its_label(tmp_path):
    path = write_classes_named(tmp_path, ("cat", "crane", "crane"), ("", "a bird", "it lifts"))
    tokenizer = ClassNameTokenizer(path)
    assert (tokenizer.vocab_size, tokenizer.length) == (3, 1)
    text, text_mask = tokenizer(["crane, it lifts", "cat", "crane, a bird", "cat"])
    assert text.tolist() == [[2], [0], [1], [0]] and text_mask.all()
    assert text.shape == text_mask.shape and text.dtype == np.int32
    assert tokenizer([])[0].shape == (0, 1)
    for text in ("crane", "Cat", "a photo of a cat."):
        with pytest.raises(ValueError, match=f"'{text}' is not the name of one class"):
            tokenizer(["cat", text])


def test_every_class_of_the_package_has_its_row():
    tokenizer = ClassNameTokenizer("cifar100")
    text, _ = tokenizer(read_classes("cifar100").names)
    assert text[:, 0].tolist() == list(range(100)) and tokenizer.vocab_size == 100


def test_classes_without_a_text_of_their_own_are_refused(tmp_path):
    path = write_classes_named(tmp_path, ("crane", "crane"), ids=("n1", "n2"))
    with pytest.raises(ValueError, match="are 'crane'; descriptions set them apart.*describe_cl"):
        ClassNameTokenizer(path)
    with pytest.raises(ValueError, match="length is 4"):
        ClassNameTokenizer("cifar10", length=4)


def test_fingerprints_change_with_whatever_changes_ids(tmp_path, clip):
    base = write_pieces(tmp_path)
    swapped = write_pieces(tmp_path, (*PIECES[:-2], PIECES[-1], PIECES[-2]), "swapped.txt")
    copy = write_pieces(tmp_path, PIECES, "copy.txt")
    prints = [
        WordPieceTokenizer(base, 10).fingerprint,
        WordPieceTokenizer(swapped, 10).fingerprint,
        WordPieceTokenizer(base, 11).fingerprint,
        WordPieceTokenizer(base, 10, lowercase=False).fingerprint,
        WordTokenizer(("a", "b"), 4).fingerprint,
        WordTokenizer(("b", "a"), 4).fingerprint,
        WordTokenizer(("a", "b"), 5).fingerprint,
        ClassNameTokenizer("cifar10").fingerprint,
        ClassNameTokenizer("cifar100").fingerprint,
        clip.fingerprint,
    ]
    assert len(set(prints)) == len(prints)
    assert WordPieceTokenizer(copy, 10).fingerprint == prints[0]
    assert all(len(value) == 64 for value in prints)


def test_threads_draw_the_same_as_one(tmp_path, clip):
    texts = [f"the cat {n} unaffable" for n in range(200)]
    for tokenizer in (clip, WordPieceTokenizer(write_pieces(tmp_path), 8)):
        whole = tokenizer(texts)
        with ThreadPoolExecutor(8) as pool:
            parts = list(pool.map(tokenizer, [[text] for text in texts]))
        for column in range(2):
            np.testing.assert_array_equal(np.concatenate([p[column] for p in parts]), whole[column])
