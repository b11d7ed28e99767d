"""What training keeps of long texts: the laws of each way, for each tokenizer and each loader."""

import itertools

import numpy as np
import pytest
from byte_pair_files import write_byte_pairs
from loaders import FLIP, assert_equal, make_loader, make_stream

from big_align.core.errors import UserError
from big_align.data.labels.classes import ClassList
from big_align.data.loading.loader import TrainLoader
from big_align.data.loading.mixture import part_seed
from big_align.data.loading.shuffle import PositionRandom
from big_align.data.loading.text_samplers import CaptionSampler, LanguageSampler
from big_align.data.sources.array_source import ArraySource
from big_align.data.text import shortening, word_ranks
from big_align.data.text.roberta_tokenizer import RobertaTokenizer
from big_align.data.text.shortening import WAYS, Shortener
from big_align.data.text.tokenizers import ClipTokenizer, WordPieceTokenizer, WordTokenizer

LENGTH, LONG = 8, 64
WORDS = tuple(f"w{n}" for n in range(40))
TEXTS = [" ".join(WORDS[:n]) for n in (*range(10), 20)] + [" ".join(reversed(WORDS[:12]))]
SPOKEN = "a black dog and two small cats are running in the green garden"


@pytest.fixture(params=["words", "wordpiece", "roberta", "clip"])
def make(request, tmp_path):
    """Makes a tokenizer of a kind, for a length and a way."""
    if request.param == "words":
        known = (*WORDS, *SPOKEN.split())
        return lambda length, way="truncate": WordTokenizer(known, length, way)
    if request.param == "roberta":
        files = write_byte_pairs(tmp_path)
        return lambda length, way="truncate": RobertaTokenizer(*files, length, way)
    if request.param == "clip":
        merges = request.getfixturevalue("data_dir") / "text/clip_bpe_simple_vocab_16e6.txt.gz"
        return lambda length, way="truncate": ClipTokenizer(str(merges), length, way)
    path = tmp_path / "vocab.txt"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "w", *(f"##{n}" for n in range(10)),
              *(w for w in SPOKEN.split() if w != "running"), "run", "##ning"]  # fmt: skip
    path.write_text("\n".join(dict.fromkeys(pieces)))
    return lambda length, way="truncate": WordPieceTokenizer(str(path), length, True, way)


def draws(count, position=0):
    return [PositionRandom(3, position).split(n) for n in range(count)]


def split_ends(tokenizer, row):
    """The ids between those that stand in every text."""
    start, end, _ = tokenizer._frame
    assert tuple(row[: len(start)]) == start and tuple(row[len(row) - len(end) :]) == end
    return list(row[len(start) : len(row) - len(end)])


def is_part(some, whole):
    rest = iter(whole)
    return all(id in rest for id in some)


@pytest.mark.parametrize("way", WAYS)
def test_texts_that_fit_stay_and_others_keep_ends_order_and_length(make, way):
    tokenizer, whole = make(LENGTH, way), make(LONG * 8)
    assert tokenizer.fingerprint == make(LENGTH).fingerprint
    shorten, cut = Shortener(tokenizer), make(LENGTH)(TEXTS)
    assert_equal(dict(enumerate(tokenizer(TEXTS))), dict(enumerate(cut)))  # as in evaluation
    for position in range(5):
        text, mask = shorten(TEXTS, draws(len(TEXTS), position))
        full = [row[real] for row, real in zip(*whole(TEXTS), strict=True)]
        for n, ids in enumerate(full):
            kept = text[n][mask[n]]
            if len(ids) <= LENGTH or way == "truncate":
                np.testing.assert_array_equal(text[n], cut[0][n])
                np.testing.assert_array_equal(mask[n], cut[1][n])
                continue
            assert len(kept) == LENGTH and mask[n].all()
            inner = split_ends(tokenizer, kept)
            assert is_part(inner, split_ends(tokenizer, ids))
            if way == "block":
                runs = [split_ends(tokenizer, ids)[k:][: len(inner)] for k in range(len(ids))]
                assert inner in runs


def test_the_ids_without_a_length_are_those_that_are_cut(make):
    tokenizer = make(LENGTH)
    texts = [*TEXTS, SPOKEN, "", "w7" * 30]
    framed = tokenizer.frame([ids[: tokenizer.room] for ids in tokenizer.encode(texts)])
    for one, two in zip(framed, tokenizer(texts), strict=True):
        np.testing.assert_array_equal(one, two)
    assert tokenizer([])[0].shape == tokenizer.frame([])[1].shape == (0, LENGTH)


def chi_squared(counts, expected):
    return ((counts - expected) ** 2 / expected).sum()


def test_every_subset_and_every_place_of_a_block_is_equally_likely():
    times = 8_000
    seen = {way: np.zeros((7, 7)) for way in ("random", "block")}
    firsts = np.zeros(5)
    for position in range(times):
        some = shortening.keep_some(7, 3, PositionRandom(1, position).split(0))
        assert list(some) == sorted(set(some)) and len(some) == 3
        for one, two in itertools.combinations(some, 2):
            seen["random"][one, two] += 1
        run = shortening.keep_run(7, 3, PositionRandom(1, position).split(0))
        assert list(run) == list(range(run[0], run[0] + 3))
        firsts[run[0]] += 1
    pairs = seen["random"][np.triu_indices(7, 1)]
    assert chi_squared(pairs, times * 3 / 21) < 50  # 20 degrees of freedom
    assert chi_squared(firsts, times / 5) < 25  # 4 degrees of freedom


@pytest.mark.parametrize(("way", "count"), [("random", LENGTH), ("block", 2)])
def test_of_one_id_too_many_any_may_be_left_out(way, count):
    shorten, text = Shortener(WordTokenizer(WORDS, LENGTH, way)), " ".join(WORDS[:LENGTH])
    assert len({tuple(shorten([text], draws(1, place))[0][0]) for place in range(200)}) == count


def test_a_stream_that_is_split_goes_on_as_if_it_were_not():
    rng, other = PositionRandom(4, 5), PositionRandom(4, 5)
    parts = [rng.split(n).random() for n in range(50)]
    assert [rng.random() for _ in range(3)] == [other.random() for _ in range(3)]
    assert len({*parts, *(rng.split(n).random() for n in range(50))}) == 100


# Syntax.


@pytest.mark.parametrize(
    ("room", "kept"),
    [
        (1, "dog"),
        (3, "dog cats garden"),
        (4, "black dog cats garden"),
        (6, "black dog small cats green garden"),
        (7, "black dog small cats are green garden"),
        (8, "black dog small cats are running green garden"),
        (9, "a black dog small cats are running green garden"),
    ],
)
def test_nouns_come_first_then_adjectives_then_verbs_in_the_order_of_the_text(room, kept):
    tokenizer = WordTokenizer(tuple(SPOKEN.split()), room + 1, "syntax")
    text, mask = Shortener(tokenizer)([SPOKEN])
    assert " ".join(tokenizer.pieces(text[mask][1:].tolist())) == kept


def test_pieces_of_a_word_have_the_rank_of_the_word(make):
    tokenizer = make(LENGTH, "syntax")
    rows, kept = Shortener(tokenizer).choose([SPOKEN])
    noun = [id for word in (" dog", " cats", " garden") for id in tokenizer.encode([word])[0]]
    inner = [rows[0][place] for place in kept[0]]
    fits = len(noun) <= tokenizer.room
    assert is_part(noun, inner) if fits else is_part(inner, noun)


@pytest.mark.parametrize(
    "text", ["The dog's ball, it isn't red!!", "T-shirt &amp; hats", "  a  b "]
)
def test_words_are_a_text_again_and_make_its_ids(make, text):
    words, tokenizer = word_ranks.split(text), make(LONG)
    assert "".join(words) == text
    made = [id for ids in tokenizer.encode(words) for id in ids]
    assert made == tokenizer.encode([text])[0]


def test_signs_endings_and_spaces_are_no_nouns():
    words = word_ranks.split("It isn't the dog's ball, 7 cats! ")
    nouns = [w.strip() for w, r in zip(words, word_ranks.load()(words), strict=True) if r == 0]
    assert nouns[-3:] == ["dog", "ball", "cats"] and not {"'t", "'s", ",", "!", ""} & set(nouns)


def test_a_tokenizer_that_splits_elsewhere_keeps_the_beginning():
    class Pairs(WordTokenizer):
        """Ids of pairs of letters, across words."""

        def encode(self, texts):
            return [[ord(c) % 40 + 3 for c in text.replace(" ", "")[::2]] for text in texts]

    pairs = Pairs(WORDS, LENGTH, "syntax")
    np.testing.assert_array_equal(Shortener(pairs)([SPOKEN])[0], pairs([SPOKEN])[0])


# The loader.


def make_source(size=40):
    image = (np.arange(size * 192) * 2654435761 >> 7).astype(np.uint8).reshape(size, 8, 8, 3)
    rolled = [[" ".join(WORDS[n % 7 + k :]) for k in range(3)] for n in range(size)]
    return ArraySource(image, rolled, np.arange(size) % 10)


def words(way="random"):
    return WordTokenizer(WORDS, LENGTH, way)


def take(loader, start, count):
    return list(itertools.islice(loader.iterate(start), count))


@pytest.mark.parametrize("way", ["random", "block", "syntax"])
@pytest.mark.parametrize("captions", [1, 2])
def test_batches_are_the_same_in_threads_and_processes_and_from_any_step(way, captions):
    given = make_source(), 8, FLIP, words(way)
    choice = {"captions_per_image": captions, "seed": 3}
    with make_loader(*given, **choice, num_threads=1) as one:
        whole = take(one, 0, 12)
    with make_loader(*given, **choice, num_threads=4) as four:
        for step, batch in enumerate(take(four, 0, 4)):
            assert_equal(batch, whole[step])
    with make_loader(*given, **choice, num_processes=2, num_threads=2) as processes:
        for step, batch in enumerate(take(processes, 3, 9), 3):
            assert_equal(batch, whole[step])


@pytest.mark.parametrize("way", ["random", "block"])
def test_another_visit_keeps_another_part_and_captions_of_a_visit_differ(way):
    source = ArraySource(np.zeros((8, 4, 4, 3), np.uint8), [[" ".join(WORDS)] * 2] * 8)
    with make_loader(source, 8, "", words(way), captions_per_image=2) as loader:
        texts = np.concatenate([batch["text"].reshape(16, LENGTH) for batch in take(loader, 0, 4)])
    assert len(np.unique(texts, axis=0)) > 0.75 * (64 if way == "random" else 32)


def test_images_and_the_choice_of_captions_do_not_depend_on_the_way():
    shown = {}
    for way in WAYS:
        with make_loader(make_source(), 8, "random_crop(6)", words(way), seed=2) as loader:
            shown[way] = take(loader, 0, 6)
    for way in WAYS:
        for one, two in zip(shown[way], shown["truncate"], strict=True):
            np.testing.assert_array_equal(one["image"], two["image"])
            np.testing.assert_array_equal(one["label"], two["label"])


def test_templates_mixtures_and_languages_are_shortened():
    classes = ClassList.from_names([f"w{n}" for n in range(10)])
    template = ("{} " + " ".join(WORDS[10:30]),)
    parts = {
        "labels": {"classes": classes, "templates": template, "seed": part_seed(5, "labels")},
        "pairs": {"keep_label": False, "seed": part_seed(5, "pairs")},
    }
    streams = {k: make_stream(make_source(), 8, "", words(), **x) for k, x in parts.items()}
    with TrainLoader(streams) as loader, TrainLoader(streams, num_processes=2) as other:
        for one, two in zip(take(loader, 0, 3), take(other, 0, 3), strict=True):
            assert_equal(one, two)
            assert (np.diff(one["text"][:, 1:]) > 0).all() and one["text_mask"].all()
            assert len(np.unique(one["text"], axis=0)) > 12  # truncated, labels would have one
    sampler = LanguageSampler(words(), {"und": 3})
    (caption,), _ = sampler.draw(make_source().read(0, 1), "", PositionRandom(0, 1))
    text, _ = sampler.tokenize([[caption]], [PositionRandom(0, 1)])
    plain, _ = CaptionSampler(words("truncate")).tokenize([[caption]])
    assert not np.array_equal(text, plain) and is_part(text[0], [2, *words().encode([caption])[0]])


def test_a_way_that_is_unknown_or_lacks_its_package_is_one_line(monkeypatch):
    with pytest.raises(UserError, match=r"^shorten = 'randm' is unknown .*'random'.*; known: trun"):
        words("randm")
    word_ranks.load.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "textblob.en", None)
    tokenizer = words("syntax")  # which evaluation uses
    with pytest.raises(UserError, match=r"textblob.*pip install 'big_align\[syntax\]'$"):
        CaptionSampler(tokenizer)
