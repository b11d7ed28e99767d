"""Recalls and accuracies of small cases computed by hand; every example counts once."""

import collections
import json

import numpy as np
import pytest

from big_align.core.errors import UserError
from big_align.data.examples import Caption
from big_align.data.labels.classes import ClassList
from big_align.data.sources.array_source import ArraySource
from big_align.data.tags.tag_list import make_tag_list, write_tag_list
from big_align.data.text.tokenizers import WordTokenizer
from big_align.evaluators.classification import Classification
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.exhibits.retrieval import Pairs
from big_align.evaluators.retrieval import (
    Retrieval,
    find_chance,
    measure_recalls,
    rank_of_match,
)
from big_align.evaluators.zero_shot import (
    ZeroShot,
    embed_classes,
    measure_accuracy,
    measure_seen,
    share_unknown,
    warn_of_alike,
)
from big_align.training.logs.directions import CANDIDATES, CHANCE


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


class OneHotEmbedder(Embedder):
    """Embeds an image by the color of its first pixel and a text by its first token."""

    def __init__(self, batch_size=4, dim=16):
        self.batch_size, self.rows, self.dim = batch_size, np.arange(batch_size), dim

    def embed_images(self, batches, count):
        rows = [(np.eye(self.dim)[b["image"][:, 0, 0, 0]], b["mask"]) for b in batches]
        return tuple(np.concatenate(x)[:count] for x in zip(*rows, strict=True))

    def embed_texts(self, text, text_mask):
        return np.eye(self.dim)[text[:, 0]]

    def classify_images(self, batches, count):
        return self.embed_images(batches, count)


def tokenize(texts):
    text = np.array([[int(t.split()[-1])] for t in texts], np.int32)
    return text, np.ones_like(text, bool)


tokenize.vocab_size, tokenize.length, tokenize.fingerprint = 16, 1, "last word"


def source(colors, captions, label=None, class_names=None):
    image = np.broadcast_to(np.uint8(colors)[:, None, None, None], (len(colors), 2, 2, 3))
    return ArraySource(image, captions, label, class_names=class_names)


class WithBroken(ArraySource):
    """A source whose second image is no image."""

    def read(self, shard, index):
        example = super().read(shard, index)
        if index == 1:
            example.image = b"not an image"
        return example


def test_ranks_by_hand():
    queries = np.float32([[1.0, 0.0], [0.0, 1.0]])
    candidates = unit(np.float32([[1.0, 0.1], [1.0, 0.0], [0.2, 1.0], [0.0, -1.0]]))
    # Query 0 owns the first candidate: the second one is nearer. Query 1 owns the last two.
    ranks = rank_of_match(queries, candidates, np.array([0, 1]), np.array([0, 5, 1, 1]))
    assert ranks.tolist() == [1, 0]


def test_chunks_and_order_of_candidates_change_no_rank():
    rng = np.random.default_rng(0)
    queries, candidates = (unit(rng.normal(size=(n, 8)).astype(np.float32)) for n in (7, 30))
    owners = np.arange(7), rng.integers(0, 7, 30)
    owners[1][:7] = np.arange(7)
    ranks = rank_of_match(queries, candidates, *owners)
    order = rng.permutation(30)
    permuted = rank_of_match(queries, candidates[order], owners[0], owners[1][order], chunk=2)
    np.testing.assert_array_equal(ranks, permuted)


def test_collapsed_embeddings_score_nothing():
    ones = np.ones((20, 4), np.float32) / 2
    assert rank_of_match(ones, ones, np.arange(20), np.arange(20)).min() == 19


def test_recall_with_several_captions_an_image():
    # Image 2 is found by its second caption only; image 1's captions both name image 0.
    captions = [["a 0"], ["b 0", "c 0"], ["d 9", "e 2"]]
    retrieval = Retrieval(source([0, 1, 2], captions), "resize(2)", tokenize, ks=(1, 2))
    result = retrieval(OneHotEmbedder())
    # Image 0 ties with two wrong captions. Of five captions only "a 0" and "e 2" find their image
    # alone; "b 0", "c 0" name another and "d 9" ties with all.
    assert result["image_to_text_r1"] == pytest.approx(1 / 3)
    assert result["text_to_image_r1"] == pytest.approx(2 / 5)


def test_padding_and_unreadable_images_do_not_count():
    captions = [[f"a {i}"] for i in range(5)]
    whole = source(range(5), captions)
    broken = WithBroken(whole._image, captions)
    for batch_size in (2, 4, 8):
        result = Retrieval(whole, "resize(2)", tokenize)(OneHotEmbedder(batch_size))
        assert result["image_to_text_r1"] == result["text_to_image_r1"] == 1
    result = Retrieval(broken, "resize(2)", tokenize, max_broken_fraction=0.5)(OneHotEmbedder())
    assert result["text_to_image_r1"] == 1


TWO_LANGUAGES = {
    "en": [["a 0"], ["b 0", "c 0"], ["d 9", "e 2"], ["f 1"]],
    "de": [["g 0", "h 0"], ["i 1"], [], ["j 2"]],
}
"""Captions of four images; the third has none in German."""


def test_images_without_a_caption_do_not_count():
    captions = [["a 1", "b 0"], [], ["c 2"], []]
    told = Retrieval(source([0, 1, 2, 0], captions), "resize(2)", tokenize)
    alone = Retrieval(source([0, 2], [captions[0], captions[2]]), "resize(2)", tokenize)
    assert told(OneHotEmbedder()) == alone(OneHotEmbedder())
    told.source = source([0, 1], [[], []])
    with pytest.raises(UserError, match="no image that can be read has a caption"):
        told(OneHotEmbedder())


def tell_languages(captions):
    rows = zip(*captions.values(), strict=True)
    return [
        [Caption(text, name) for name, texts in zip(captions, row, strict=True) for text in texts]
        for row in rows
    ]


def facts_of(numbers):
    return [name for name in numbers if name.endswith((CHANCE, CANDIDATES))]


def test_a_language_is_measured_as_if_there_were_no_other():
    """Each has the numbers of a source with its captions, and with the images that have some."""
    colors = np.array([0, 1, 2, 3])
    both = source(colors, tell_languages(TWO_LANGUAGES))
    retrieval = Retrieval(both, "resize(2)", tokenize, ks=(1, 2), by_language=True)
    result = retrieval(OneHotEmbedder())
    assert tuple(name for name in result if name not in facts_of(result)) == retrieval.numbers
    means = []
    for language, captions in TWO_LANGUAGES.items():
        mine = [n for n, texts in enumerate(captions) if texts]
        alone = source(colors[mine], [captions[n] for n in mine])
        expected = Retrieval(alone, "resize(2)", tokenize, ks=(1, 2))(OneHotEmbedder())
        for name, value in expected.items():
            assert result[f"{language}_{name}"] == value
        means.append(np.mean([x for name, x in expected.items() if name not in facts_of(expected)]))
        assert result[f"{language}_mean_recall"] == pytest.approx(means[-1])
    assert result["mean_recall"] == pytest.approx(np.mean(means))
    # By hand, of German: images 0 and 1 are found by their captions, which are alone with them; the
    # last caption names an image that has no German caption, so all others are before it.
    assert result["de_image_to_text_r1"] == pytest.approx(2 / 3)
    assert result["de_text_to_image_r1"] == pytest.approx(3 / 4)


def test_the_order_of_languages_in_an_example_changes_no_number():
    turned = {name: TWO_LANGUAGES[name] for name in ("de", "en")}
    results = []
    for captions in (TWO_LANGUAGES, turned):
        told = source([0, 1, 2, 3], tell_languages(captions))
        results.append(Retrieval(told, "resize(2)", tokenize, by_language=True)(OneHotEmbedder()))
    assert results[0] == results[1]


def test_captions_must_tell_the_languages_that_are_measured():
    plain = source([0, 1], [["a 0"], ["b 1"]])
    with pytest.raises(UserError, match="the source gives none: name them in its field `caption`"):
        Retrieval(plain, "resize(2)", tokenize, by_language=True)
    told = source([0, 1], tell_languages({"en": [["a 0"], ["b 1"]]}))
    retrieval = Retrieval(told, "resize(2)", tokenize, by_language=True)
    retrieval.languages = ("en", "de")  # the image of the only German caption cannot be read
    with pytest.raises(UserError, match="no image that can be read has a caption in 'de'"):
        retrieval(OneHotEmbedder())


def test_accuracy_by_hand():
    similarity = np.float32([[0.9, 0.1, 0.0], [0.2, 0.1, 0.3], [0.5, 0.5, 0.1], [0.1, 0.8, 0.2]])
    result = measure_accuracy(similarity, np.array([0, 2, 0, 0]))
    # The third ties with a wrong class and counts as wrong; class 0 has 1 of 3, class 2 has 1 of 1.
    assert result["top1"] == pytest.approx(0.5)
    assert result["mean_per_class"] == pytest.approx((1 / 3 + 1) / 2)
    assert result["top5"] == 1
    similarity = np.tile(np.float32([7, 6, 5, 4, 3, 2, 1]), (3, 1))
    result = measure_accuracy(similarity, np.array([0, 4, 5]))  # first, fifth and sixth
    assert result["top1"] == pytest.approx(1 / 3) and result["top5"] == pytest.approx(2 / 3)


def test_recall_counts_the_first_k():
    # Image i is found at rank i: i captions of others are nearer to it than its own.
    zimg = np.eye(4, dtype=np.float32)
    ztxt = np.float32([[9, 9, 9, 9], [0, 5, 5, 5], [0, 0, 3, 3], [0, 0, 0, 1]])
    pairs = Pairs(zimg, ztxt, ["a"] * 4, np.arange(4), np.arange(4))
    found = measure_recalls(pairs, (1, 2, 3, 4))
    assert [found[f"image_to_text_r{k}"] for k in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1.0]
    # Every caption ties with all images beyond its own.
    assert [found[f"text_to_image_r{k}"] for k in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1.0]


def test_chance_is_what_random_embeddings_find():
    """Image 0 has three of six captions, so chance differs from image to image."""
    owner, rng, ks = np.array([0, 0, 0, 1, 1, 2]), np.random.default_rng(0), (1, 2, 4)
    sums = collections.Counter()
    for _ in range(2000):
        zimg, ztxt = (rng.normal(size=(n, 8)).astype(np.float32) for n in (3, 6))
        pairs = Pairs(unit(zimg), unit(ztxt), ["a"] * 6, owner, np.arange(3))
        sums.update(measure_recalls(pairs, ks))
    chance = find_chance(pairs, ks)
    assert chance["image_to_text_candidates"] == 6 and chance["text_to_image_candidates"] == 3
    for name, total in sums.items():
        assert total / 2000 == pytest.approx(chance[f"{name}_chance"], abs=0.03)


def test_a_recall_that_nothing_can_miss_is_left_out():
    captions = [["a 0", "b 0"], ["c 1", "d 1"], ["e 2"]]
    result = Retrieval(source([0, 1, 2], captions), "resize(2)", tokenize)(OneHotEmbedder())
    recalls = {name for name in result if name not in facts_of(result)}
    assert recalls == {"image_to_text_r1", "text_to_image_r1"}
    assert result["text_to_image_r1_chance"] == pytest.approx(1 / 3)
    assert result["image_to_text_r1_chance"] == pytest.approx((2 / 5 + 2 / 5 + 1 / 5) / 3)
    assert "image_to_text_r5_chance" not in result


def test_classes_are_averaged_after_normalization_and_normalized_again():
    class TwoClasses(Embedder):
        def __init__(self):
            pass

        def embed_texts(self, text, text_mask):
            return unit(np.float32([[1, 0], [0, 1], [3, 4], [3, 4]]))[: len(text)]

    classes = embed_classes(TwoClasses(), tokenize, [["x 0", "y 0"], ["x 1", "y 1"]])
    np.testing.assert_allclose(classes, [[0.5**0.5, 0.5**0.5], [0.6, 0.8]], rtol=1e-6)
    # A class may have more texts than another: synonyms.
    classes = embed_classes(TwoClasses(), tokenize, [["x 0"], ["x 1", "y 1", "z 1"]])
    mean = np.array([1.2, 2.6]) / np.hypot(1.2, 2.6)
    np.testing.assert_allclose(classes, [[1, 0], mean], rtol=1e-6)


def test_zero_shot_names_the_color():
    data = source([0, 1, 2, 2], [["-"]] * 4, [0, 1, 2, 1])
    evaluate = ZeroShot(data, "resize(2)", tokenize, names=("0", "1", "2"), templates=("{}",))
    assert evaluate(OneHotEmbedder())["top1"] == pytest.approx(0.75)
    with pytest.raises(ValueError, match="are not in the 2 class names"):
        ZeroShot(data, "resize(2)", tokenize, names=("0", "1"))(OneHotEmbedder())


def test_classes_with_one_text_are_named_in_a_warning(caplog):
    """No word is known, so texts are equal: without a word about it, 0% looks like a bad model."""
    classes = unit(np.float32([[3, 4], [1, 0], [3, 4], [0, 1], [3, 4], [1, 0]]))
    warn_of_alike(classes[[0, 1, 3]], [["a"], ["b"], ["c"]], tokenize, "zero_shot")
    assert not caplog.text
    for _ in range(2):
        warn_of_alike(classes, [[letter] for letter in "abcdef"], tokenize, "cifar10 test")
    assert caplog.text.count("cifar10 test: 5 of 6 texts have the same embedding") == 1
    assert "'a' and 'c' among them" in caplog.text and "vocabulary may lack" in caplog.text

    caplog.clear()
    data = source([0, 1, 2], [["-"]] * 3, [0, 1, 2])
    evaluate = ZeroShot(data, "resize(2)", tokenize, ("1", "1", "1"), templates=("{}",))
    assert evaluate(OneHotEmbedder())["top1"] == 0
    assert "3 of 3 texts" in caplog.text


def test_classes_that_are_mostly_unknown_are_named_in_a_warning(caplog):
    words, apart = WordTokenizer(("photo", "of", "dog", "cat"), 9), unit(np.eye(3))
    texts = [["photo of dog.", "dog"], ["photo of some wolf", "cat"], ["a wolf", "the red fox"]]
    np.testing.assert_allclose(share_unknown(words, texts), [0, 2 / 5, 1])
    assert share_unknown(tokenize, [["x 1"], ["x 2", "y 2"]]).tolist() == [0, 0]
    warn_of_alike(apart[:2], texts[:2], words, "zero_shot")
    assert not caplog.text
    warn_of_alike(apart, texts, words, "benchmark")
    assert "benchmark: of 1 of 3 texts, the tokenizer knows less than half, 'a wolf'" in caplog.text


def test_accuracy_of_seen_and_unseen_classes_by_hand(tmp_path):
    """IDEA, Fig. 7: means over the classes that are tags, and over the others."""
    label = np.array([0, 0, 0, 1, 2, 2])
    guess = np.array([0, 0, 1, 1, 0, 2])
    similarity = np.eye(4)[guess]  # the fourth class has no image
    found = measure_seen(similarity, label, np.array([True, True, False, True]))
    assert found == pytest.approx(
        {"seen_top1": (2 / 3 + 1) / 2, "unseen_top1": 1 / 2, "seen_classes": 2}
    )
    assert measure_seen(similarity, label, np.zeros(4, bool))["seen_top1"] == 0

    tags = tmp_path / "tags.json"
    words = WordTokenizer(("tabby", "cat", "dog"), 6)
    write_tag_list(make_tag_list(("tabby cat", "dog"), (3, 2), words), str(tags), {})
    path = tmp_path / "classes.json"
    rows = [{"name": "Tabby_cat"}, {"name": "1"}, {"name": "2", "synonyms": ["Dog"]}]
    path.write_text(json.dumps(rows))
    data = source([0, 1, 2, 2], [["-"]] * 4, [0, 1, 2, 1])
    options = dict(names=str(path), templates=("{}",), tags=str(tags))
    evaluate = ZeroShot(data, "resize(2)", tokenize, **options)
    assert evaluate.seen.tolist() == [True, False, True]
    assert evaluate.numbers[-3:] == ("seen_top1", "unseen_top1", "seen_classes")
    options["names"] = ("yeti", "ghost")
    with pytest.raises(ValueError, match="none of the 2 classes, 'yeti' the first, is in the tag"):
        ZeroShot(data, "resize(2)", tokenize, **options)


def test_zero_shot_matches_the_classes_of_a_source_by_name(tmp_path):
    """A folder of wnids fits by the ids of the list, in any order, and without some of them."""
    path = tmp_path / "classes.json"
    rows = [{"name": name, "id": f"n{n}"} for n, name in enumerate("012")]

    def make(names):
        colors = [int(name[1:]) for name in names if name[0] == "n"]
        labels = [names.index(f"n{color}") for color in colors]
        data = source(colors, [["-"]] * len(colors), labels, class_names=names)
        return ZeroShot(data, "resize(2)", tokenize, str(path), templates=("{}",))

    path.write_text(json.dumps(rows))
    for names in (("n0", "n1", "n2"), ("n2", "n0", "n1"), ("n1", "n2")):
        assert make(names)(OneHotEmbedder())["top1"] == 1
    with pytest.raises(UserError, match="label 0 is '.cache', which is no class of the class list"):
        make((".cache", "n0", "n1", "n2"))


def test_classification_matches_the_classes_of_the_classifier_by_name():
    """Colors are classes of the classifier; the source numbers those that it has, as folders do."""
    trained = ClassList.from_names(["ant", "bee", "cow", "dog", "ant"])
    data = source([1, 3, 2], [["-"]] * 3, [0, 1, 1], class_names=("bee", "dog"))
    given = {"num_classes": 4, "trained_classes": trained}
    evaluate = Classification(data, "resize(2)", **given)
    assert evaluate(OneHotEmbedder())["top1"] == pytest.approx(2 / 3)
    other = source([4], [["-"]], [0], class_names=("ant",))
    assert Classification(other, "resize(2)", 4, **given)(OneHotEmbedder())["top1"] == 1
    with pytest.raises(UserError, match="'emu', which is no class of the classifier"):
        Classification(source([1], [["-"]], [0], ("emu",)), "resize(2)", **given)


def test_classification_is_among_the_classes_of_the_part():
    """Colors 4, 5, 6 are classes 0, 1, 2 of a part that begins at 4; 9 is of another part."""
    data = source([4, 5, 6, 6, 9], [["-"]] * 5, [0, 1, 2, 1, 0])
    for batch_size in (2, 4, 8):
        evaluate = Classification(data, "resize(2)", first_class=4, num_classes=3)
        result = evaluate(OneHotEmbedder(batch_size))
        assert result["top1"] == pytest.approx(3 / 5)  # The last ties among the three.
        assert result["mean_per_class"] == pytest.approx((1 / 2 + 1 / 2 + 1) / 3)
    # Every class from 4 on: the 9 is now taken for the class 5 of its part.
    data = source([4, 5, 9], [["-"]] * 3, [0, 1, 5])
    assert Classification(data, "resize(2)", first_class=4)(OneHotEmbedder())["top1"] == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda *given, **more: Classification(*given, **more),
        lambda *given, **more: ZeroShot(*given, tokenize, ("0", "1", "2"), ("{}",), **more),
    ],
    ids=["classification", "zero_shot"],
)
def test_classes_of_unreadable_images_are_left_out(make):
    whole = source([0, 1, 2], [["-"]] * 3, [0, 2, 2])
    broken = WithBroken(whole._image, [["-"]] * 3, [0, 2, 2])
    evaluate = make(broken, "resize(2)", max_broken_fraction=0.5)
    assert evaluate(OneHotEmbedder())["top1"] == 1
    assert make(whole, "resize(2)")(OneHotEmbedder())["top1"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_classes": 2}, "1 labels, 2 among them, are not in the 2 classes from first_class"),
        ({"first_class": 14, "num_classes": 3}, "do not fit the 16 classes"),
        ({"first_class": 16}, "do not fit the 16 classes"),
        ({"first_class": -1}, "first_class = -1 must not be negative"),
        ({"num_classes": 0}, "num_classes = 0 must be at least 1"),
    ],
)
def test_classes_that_do_not_fit_the_part_are_an_error(options, message):
    data = source([0, 1, 2], [["-"]] * 3, [0, 1, 2])
    with pytest.raises(ValueError, match=message):
        Classification(data, "resize(2)", **options)(OneHotEmbedder())


def test_zero_shot_takes_names_templates_and_descriptions_from_a_class_list(tmp_path):
    path = tmp_path / "classes.json"
    classes = [{"name": "crane", "description": f"number {n}"} for n in range(3)]
    path.write_text(json.dumps({"classes": classes, "templates": ["{}"]}))
    data = source([0, 1, 2, 2], [["-"]] * 4, [0, 1, 2, 1])
    described = ZeroShot(data, "resize(2)", tokenize, str(path), ("{}, {description}",))
    assert described.texts == [[f"crane, number {n}"] for n in range(3)]
    assert described(OneHotEmbedder())["top1"] == pytest.approx(0.75)
    # Given templates come first; the last word is what the tokenizer of this test sees.
    path.write_text(json.dumps({"classes": ["0", "1", "2"], "templates": ["{} 9"]}))
    collapsed = ZeroShot(data, "resize(2)", tokenize, str(path))
    assert collapsed(OneHotEmbedder())["top1"] == 0
    given = ZeroShot(data, "resize(2)", tokenize, str(path), templates=("{}",))
    assert given(OneHotEmbedder())["top1"] == pytest.approx(0.75)
    plain = ZeroShot(data, "resize(2)", tokenize, ("cat", "dog"))
    assert plain.texts == [["a photo of a cat."], ["a photo of a dog."]]
    built_in = ZeroShot(data, "resize(2)", tokenize, "imagenet")
    assert {len(group) for group in built_in.texts} == {80} and len(built_in.texts) == 1000
    synonyms = ZeroShot(data, "resize(2)", tokenize, "fer2013", templates=("a {}",))
    assert synonyms.texts[3] == ["a happy", "a smiling"] and synonyms.texts[0] == ["a angry"]
    with pytest.raises(ValueError, match="'imagnet'.*did you mean 'imagenet'"):
        ZeroShot(data, "resize(2)", tokenize, "imagnet")


def test_what_is_not_finite_is_not_found():
    ones = np.float32([[1, 0], [0, 1]])
    broken = np.float32([[np.nan, np.nan], [0, 1]])
    owner = np.arange(2)
    assert rank_of_match(broken, ones, owner, owner).tolist() == [1, 0]
    assert rank_of_match(np.full((30, 2), np.nan, np.float32), np.ones((30, 2), np.float32),
                         np.arange(30), np.arange(30)).min() == 29  # fmt: skip
    assert rank_of_match(ones, broken, owner, owner).tolist() == [1, 1]
    scores = np.full((3, 8), np.nan, np.float32)
    assert set(measure_accuracy(scores, np.array([0, 3, 7])).values()) == {0}


@pytest.mark.parametrize("ks", [(), (0, 1), (-1,)])
def test_cut_offs_are_numbers_from_1_on(ks):
    with pytest.raises(UserError, match="must be one or more numbers from 1 on"):
        Retrieval(source([0], [["a 0"]]), "resize(2)", tokenize, ks=ks)
