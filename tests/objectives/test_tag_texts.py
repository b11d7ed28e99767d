"""Texts of tags: what the tokenizer makes of the tags' names, written inside the compiled step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from big_align.data.tags.tag_list import make_tag_list
from big_align.data.text.roberta_tokenizer import RobertaTokenizer
from big_align.data.text.tokenizers import ClipTokenizer, WordPieceTokenizer, WordTokenizer
from big_align.objectives.parts.tag_texts import TagTexts, split_ends
from tests import tiny
from tests.data.byte_pair_files import write_byte_pairs

NAMES = ("dog", "hot dog", "stop sign at night", "cat", "fire truck", "boat")
WORDS = tuple(sorted({word for name in NAMES for word in name.split()}))


def make_tokenizer(kind, data_dir=None, length=16):
    if kind == "words":
        return WordTokenizer(WORDS, length)
    folder = data_dir / "text"
    if kind == "clip":
        return ClipTokenizer(str(folder / "clip_bpe_simple_vocab_16e6.txt.gz"), length)
    return WordPieceTokenizer(str(folder / "bert-base-uncased-vocab.txt"), length)


def make_texts(tokenizer, names=NAMES):
    return TagTexts(make_tag_list(names, range(len(names), 0, -1), tokenizer), tokenizer)


def choose(*rows):
    return jnp.asarray([[tag in row for tag in range(len(NAMES))] for row in rows])


def assert_same_texts(written, tokenizer, sentences):
    text, mask = tokenizer(sentences)
    np.testing.assert_array_equal(written[1], mask)
    np.testing.assert_array_equal(np.where(mask, written[0], 0), np.where(mask, text, 0))


@pytest.mark.parametrize("kind", ["words", "clip", "wordpiece"])
def test_a_text_is_what_the_tokenizer_makes_of_the_names(data_dir, kind):
    tokenizer = make_tokenizer(kind, data_dir)
    rows = [(0,), (1, 5), (0, 1, 2, 3, 4, 5), (2, 3)]
    written = jax.jit(make_texts(tokenizer).__call__)(choose(*rows))
    assert_same_texts(written, tokenizer, [" ".join(NAMES[tag] for tag in row) for row in rows])


def test_words_of_tags_do_not_run_together(tmp_path):
    """RoBERTa's ids of a word contain the space before it; here the first tag has one too."""
    tokenizer = RobertaTokenizer(*write_byte_pairs(tmp_path), 64)
    written = jax.jit(make_texts(tokenizer).__call__)(choose((0,), (1, 5), (0, 2, 3)))
    texts = [" dog", " hot dog boat", " dog stop sign at night cat"]
    assert_same_texts(written, tokenizer, texts)


@pytest.mark.parametrize("kind", ["words", "clip", "wordpiece"])
def test_a_row_without_tags_has_the_empty_text(data_dir, kind):
    tokenizer = make_tokenizer(kind, data_dir)
    written = make_texts(tokenizer)(choose((), (3,), ()))
    assert_same_texts(written, tokenizer, ["", "cat", ""])


@pytest.mark.parametrize(
    "length",
    [7, 8, 11, *(pytest.param(n, marks=pytest.mark.slow) for n in (9, 10, 12, 13, 14, 15))],
)
def test_a_long_text_ends_after_the_last_whole_tag(data_dir, length):
    """Tags have 1, 2, 4, 1, 2 and 1 words, between two ids of CLIP."""
    tokenizer = make_tokenizer("clip", data_dir, length)
    room = length - 2
    fitting = [n for n in range(1, 7) if sum((1, 2, 4, 1, 2, 1)[:n]) <= room][-1]
    written = jax.jit(make_texts(tokenizer).__call__)(choose(range(6)))
    assert_same_texts(written, tokenizer, [" ".join(NAMES[:fitting])])


def test_many_tags_against_a_loop():
    rng = np.random.default_rng(0)
    words = tuple(f"w{number}" for number in range(40))
    tokenizer = WordTokenizer(words, 9)
    names = [" ".join(rng.choice(words, rng.integers(1, 4), replace=False)) for _ in range(2500)]
    names = tuple(dict.fromkeys(names))
    chosen = rng.random((32, len(names))) < rng.choice([0, 1e-3, 1e-2, 0.5], (32, 1))
    expected = []
    for row in chosen:
        sentence = []
        for tag in np.flatnonzero(row):
            if len(sentence) + len(names[tag].split()) > 8:
                break
            sentence += names[tag].split()
        expected.append(" ".join(sentence))
    text, mask = jax.jit(make_texts(tokenizer, names).__call__)(jnp.asarray(chosen))
    assert_same_texts((np.asarray(text), np.asarray(mask)), tokenizer, expected)


def test_eight_devices_write_what_one_does_without_moving_a_row():
    texts = make_texts(make_tokenizer("words"))
    chosen = jnp.asarray(np.random.default_rng(0).random((16, len(NAMES))) < 0.4)
    rows = NamedSharding(tiny.make_mesh(8), PartitionSpec(("data", "fsdp")))
    compiled = jax.jit(texts.__call__, out_shardings=rows).lower(
        jax.ShapeDtypeStruct(chosen.shape, bool, sharding=rows)
    ).compile()  # fmt: skip
    for collective in ("all-gather", "all-reduce", "collective-permute", "all-to-all"):
        assert collective not in compiled.as_text()
    jax.tree.map(
        np.testing.assert_array_equal, compiled(jax.device_put(chosen, rows)), texts(chosen)
    )


def test_memory_is_a_small_multiple_of_the_choices():
    names = tuple(f"w{number}" for number in range(2500))
    texts = make_texts(WordTokenizer(names, 40), names)
    chosen = jax.ShapeDtypeStruct((256, 2500), bool)
    compiled = jax.jit(texts.__call__).lower(chosen).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * 4 * 256 * 2500


def test_ids_at_the_ends_are_those_of_an_empty_text(data_dir):
    assert split_ends(make_tokenizer("words"), "dog") == ([2], [])
    assert split_ends(make_tokenizer("wordpiece", data_dir), "dog") == ([101], [102])
    assert split_ends(make_tokenizer("clip", data_dir), "dog") == ([49406], [49407])


def test_a_tag_that_fits_no_text_is_named():
    """The list is made with longer texts."""
    tags = make_tag_list(NAMES, range(6, 0, -1), make_tokenizer("words"))
    with pytest.raises(ValueError, match="'stop sign at night' fills a text of 4 tokens: raise"):
        TagTexts(tags, make_tokenizer("words", length=4))
    blank = make_tokenizer("words", length=4)
    blank.fingerprint = ""  # knows no vocabulary, so no name is compared
    with pytest.raises(ValueError, match="'stop sign at night' has 4 tokens.*length = 4.*for 3"):
        TagTexts(tags, blank)


def test_a_list_of_another_vocabulary_is_refused():
    tags = make_tag_list(NAMES, range(6, 0, -1), make_tokenizer("words"))
    with pytest.raises(ValueError, match="made for another vocabulary"):
        TagTexts(tags, WordTokenizer(WORDS[::-1], 16))
