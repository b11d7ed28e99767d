"""One definition of a word, for vocabularies, tokenizers, tags, names and rules alike."""

import glob
import json
import tarfile
import unicodedata

import numpy as np
import pytest

from big_align.data.labels.classes import read_classes
from big_align.data.labels.label_names import normalize_name
from big_align.data.tags.tag_extraction import TagExtractor
from big_align.data.text.clip_tokenizer import ClipTokenizer, clean_text
from big_align.data.text.html_entities import unescape
from big_align.data.text.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer, WordTokenizer
from big_align.data.text.vocabulary import learn_vocabulary, write_vocabulary
from big_align.data.text.word_counts import count_texts, weigh_languages
from big_align.errors import UserError
from big_align.prepare.text_rules import normalize_text, split_unigrams
from big_align.words import split_words

SPACES = [chr(code) for code in range(0x110000) if chr(code).isspace()] + ["\u200b"]
FORMS = ("NFC", "NFD")


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def tokenizer(request, tmp_path_factory) -> WordPieceTokenizer:
    path = tmp_path_factory.mktemp("words") / "vocabulary.txt"
    pieces = (*SPECIAL_TOKENS, "hot", "dog", "##dog", "b", "##b", "a", "Kadın", "kadın", "Å", "é")
    path.write_text("\n".join(pieces), encoding="utf-8")
    return WordPieceTokenizer(str(path), 24, lowercase=request.param)


@pytest.fixture(scope="module")
def german(data_dir) -> list[str]:
    texts = []
    for path in sorted(glob.glob(str(data_dir / "flickr8k_multilingual" / "test-*.tar"))):
        with tarfile.open(path) as shard:
            for member in shard:
                if member.name.endswith(".json"):
                    texts += json.load(shard.extractfile(member))["de"]
    return texts


def split_pieces(tokenizer: WordPieceTokenizer, texts: list[str]) -> list[list[str]]:
    rows = zip(*tokenizer(texts), strict=True)
    return [tokenizer.pieces(ids[mask].tolist()[1:-1]) for ids, mask in rows]


def test_white_space_of_any_kind_parts_words_everywhere(tokenizer):
    texts = [f"hot{space}dog" for space in SPACES]
    assert split_pieces(tokenizer, texts) == [["hot", "dog"]] * len(texts)
    assert count_texts(texts, tokenizer.lowercase)[""].words == dict.fromkeys(
        ("hot", "dog"), len(texts)
    )
    assert (WordTokenizer(("hot", "dog"), 3)(texts)[0] == [2, 3, 4]).all()
    for text in texts:
        assert split_words(text) == split_unigrams(text) == ["hot", "dog"], ascii(text)
        assert normalize_text(text) == "hot dog", ascii(text)


def test_a_word_that_is_counted_is_one_word_to_the_tokenizer(tokenizer):
    """So a vocabulary that is learned from counts has no piece that no text can have."""
    chars = [chr(code) for code in range(0x20, 0xFFFF) if not 0xD800 <= code < 0xE000]
    texts = [f"a{char}b" for char in chars if unicodedata.category(char) != "Cn"]
    words = list(count_texts(texts, tokenizer.lowercase)[""].words)
    assert len(words) > 30_000
    ids, mask = tokenizer(words)
    begins = np.array([not piece.startswith("##") for piece in tokenizer.vocabulary])
    begun = (begins[ids] & mask).sum(axis=1) - 2  # without [CLS] and [SEP]
    assert [ascii(word) for word, count in zip(words, begun, strict=True) if count != 1] == []


@pytest.mark.parametrize("form", FORMS)
def test_letters_are_the_same_however_they_are_composed(tokenizer, form):
    texts = [unicodedata.normalize(form, x) for x in ("Kadın é", "\u212b é", "각 가", "क़ é", "Ắ ǖ")]
    other = [unicodedata.normalize("NFC", text) for text in texts]
    ids, _ = tokenizer(texts)
    np.testing.assert_array_equal(ids, tokenizer(other)[0])
    lowercase = tokenizer.lowercase
    assert count_texts(texts, lowercase) == count_texts(other, lowercase)
    for text, same in zip(texts, other, strict=True):
        assert split_words(text) == split_words(same) and clean_text(text) == clean_text(same)
        assert normalize_name(text) == normalize_name(same)


def test_captions_from_a_mac_have_the_ids_of_others(german, tmp_path):
    """Composed or not, German captions get the same ids, of a cased vocabulary too."""
    path = str(tmp_path / "vocabulary.txt")
    counts = count_texts(german[:1500], lowercase=False)
    write_vocabulary(learn_vocabulary(weigh_languages(counts), 800, 1.0).pieces, path)
    tokenizer = WordPieceTokenizer(path, lowercase=False)
    (ids, mask), (other, _) = (
        tokenizer([unicodedata.normalize(form, text) for text in german[:1500]]) for form in FORMS
    )
    np.testing.assert_array_equal(other, ids)
    assert not (ids[mask] == tokenizer.unknown_id).any()


def test_clip_takes_composed_and_decomposed_letters_alike(german, data_dir):
    clip = ClipTokenizer(str(data_dir / "text" / "clip_bpe_simple_vocab_16e6.txt.gz"))
    (ids, _), (other, _) = (
        clip([unicodedata.normalize(form, text) for text in german[:300]]) for form in FORMS
    )
    np.testing.assert_array_equal(other, ids)


def test_a_class_list_has_a_name_once(tmp_path):
    path = tmp_path / "classes.txt"
    path.write_text("bar\ncafé\ncafe\u0301\n", encoding="utf-8")
    with pytest.raises(UserError, match="line 2 and line 3 are both 'café'"):
        read_classes(str(path))
    path.write_text("bar\u00a0stool\ncafe\u0301_table\n", encoding="utf-8")
    assert read_classes(str(path)).names == ("bar stool", "café table")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("काम का", ["काम", "का"]),
        ("घरेलू-घर", ["घरेलू", "घर"]),
        ("குழந்தை, ภาษา\u200bไทย", ["குழந்தை", ",", "ภาษา", "ไทย"]),
        ("T-Shirts: so - hot_dogs!", ["t", "shirts", ":", "so", "-", "hot", "dogs", "!"]),
        ("co\u00adop -- a-- -b", ["coop", "-", "-", "a", "-", "-", "-", "b"]),
        ("STRAẞE ΔΡΟΜΟΣ δρόμος ﬁsh", ["strasse", "δρομοσ", "δρόμοσ", "fish"]),
        ("草の犬 ❤️", ["草", "の", "犬", "❤"]),
        ("", []),
    ],
)
def test_words_are_runs_of_letters_with_their_marks(text, words):
    assert split_words(text) == words
    signs = {word for word in words if not any(map(str.isalpha, word))}
    assert split_unigrams(text) == [word for word in words if word not in signs]


@pytest.mark.parametrize(
    ("caption", "tags"),
    [
        ("काम", []),
        ("घरेलू काम", []),
        ("मेरा घर।", ["घर"]),
        ("चाय का कप", ["का"]),
        ("hot\u200bdog", ["hot dog"]),
        ("草の上の犬", ["犬"]),
        ("un cafe\u0301, l'été", ["café", "été"]),
    ],
)
def test_tags_are_whole_words_of_any_script(data_dir, caption, tags):
    names = ("का", "घर", "hot dog", "犬", "café", "été")
    found = TagExtractor(names, 8, str(data_dir / "nltk_data")).find([caption])
    assert [names[id] for id in sorted(found)] == tags


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("rock&reggae", "rock&reggae"),
        ("?a=1&copy=2", "?a=1&copy=2"),
        ("&copy 2024, fish &amp chips, caf&eacute", "© 2024, fish & chips, café"),
        ("&lt;b&gt; &#39;&#x41;&#66 &nosuch; &notit;", "<b> 'AB &nosuch; &notit;"),
        ("R&D, AT&T, Q&A; &", "R&D, AT&T, Q&A; &"),
    ],
)
def test_entities_are_those_that_browsers_read_in_alt_texts(raw, text):
    assert unescape(raw) == text
    assert clean_text(raw) == text.lower()
    if "<" not in text:  # markup is left out
        assert normalize_text(raw) == text
