"""Tag lists, the tags that captions name, and their way into batches."""

import dataclasses
import json

import fsspec
import loaders
import numpy as np
import pytest

from big_align.core.errors import UserError
from big_align.data.labels.classes import ClassList
from big_align.data.labels.word_net import WordNet
from big_align.data.loading.loader import TrainLoader
from big_align.data.sources.array_source import ArraySource
from big_align.data.tags.tag_counting import (
    choose_tags,
    keep_compounds,
    list_nouns,
    read_names,
)
from big_align.data.tags.tag_extraction import TagExtractor, Tagger
from big_align.data.tags.tag_list import make_tag_list, read_tag_list, weigh, write_tag_list
from big_align.data.text.tokenizers import ClipTokenizer, WordPieceTokenizer, WordTokenizer

NAMES = (
    "dog", "man", "cat", "hot dog", "glass", "glasses", "ice cream", "ice cream truck", "cream",
    "cream soda", "t-shirt", "sports shoes", "café", "gas", "doe", "犬",
    "cream truck",
)  # fmt: skip
WORDS = WordTokenizer(("hot", "dog", "dogs", "cat", "a", "and", "man"), length=6)


@pytest.fixture(scope="module")
def wordnet(data_dir) -> str:
    return str(data_dir / "nltk_data")


@pytest.fixture(scope="module")
def extract(wordnet) -> TagExtractor:
    return TagExtractor(NAMES, 8, wordnet)


def names_in(extract, *captions: str) -> list[str]:
    return [NAMES[id] for id in extract(captions) if id >= 0]


@pytest.mark.parametrize(
    ("caption", "tags"),
    [
        ("a dog", ["dog"]),
        # Plurals, regular and not; a listed plural matches the singular
        ("Two dogs, three MEN.", ["dog", "man"]),
        ("a sports shoe", ["sports shoes"]),
        # A plural that is a noun of its own is matched as it stands
        ("a glass", ["glass"]),
        ("a man with glasses", ["man", "glasses"]),
        # No plurals: "gas" of "ga", "does" of "doe"
        ("gas", ["gas"]),
        ("she does", []),
        ("a doe", ["doe"]),
        # Compounds hide what stands inside them, there and nowhere else
        ("a hot dog", ["hot dog"]),
        ("hot dogs for the dogs", ["dog", "hot dog"]),
        ("ice cream", ["ice cream"]),
        ("an ice cream truck", ["ice cream truck"]),
        ("a cream truck", ["cream truck"]),
        ("cream beside the ice-cream trucks", ["ice cream truck", "cream"]),
        ("ice cream soda", ["ice cream", "cream soda"]),  # neither stands inside the other
        # Signs part words, hyphens and underscores inside words do as a space does
        ("hot, dog", ["dog"]),
        ("so hot - dogs!", ["dog"]),
        ("HOT-DOGS? hot_dog", ["hot dog"]),
        ("T-Shirts (and t shirts)", ["t-shirt"]),
        ('the cat\'s "cat"', ["cat"]),
        # Whole words alone
        ("category, dogma, hotdog", []),
        # Other writing, composed or not, and nothing at all
        ("Cafe\u0301", ["café"]),
        ("un chien, собака, ein Hund, כלב", []),
        ("犬", ["犬"]),
        ("\U0001f415 ...", []),
        ("", []),
        (" \n\t", []),
    ],
)
def test_a_caption_has_the_tags_that_a_reader_finds(extract, caption, tags):
    assert names_in(extract, caption) == tags


def test_tags_of_several_captions_are_the_union_ascending_and_padded(extract):
    one, two = "cats and hot dogs", "a dog with a cat"
    found = extract([one, two])
    assert found.dtype == np.int32 and found.shape == (8,)
    assert found.tolist() == [0, 2, 3, -1, -1, -1, -1, -1]
    np.testing.assert_array_equal(extract([two, one]), found)
    assert extract([]).tolist() == [-1] * 8
    assert names_in(extract, "ice", "cream") == ["cream"]  # nothing reaches into another caption


def test_the_most_frequent_of_too_many_tags_are_kept(wordnet):
    assert TagExtractor(NAMES, 2, wordnet)(["glass, cat, man, dog"]).tolist() == [0, 1]


def test_names_that_cannot_be_told_apart_are_refused(wordnet, tmp_path):
    with pytest.raises(UserError, match="'t-shirt' and 'T shirt' are the same words"):
        TagExtractor(("t-shirt", "T shirt"), 2, wordnet)
    with pytest.raises(UserError, match="' ' has no words"):
        TagExtractor((" ",), 2, wordnet)
    with pytest.raises(ValueError, match="max_tags = 0"):
        TagExtractor(NAMES, 0, wordnet)
    with pytest.raises(UserError, match="not in .*nltk.downloader wordnet"):
        TagExtractor(NAMES, 1, str(tmp_path))


def test_the_truth_holds_what_was_given_and_what_other_captions_name(wordnet):
    tagger = Tagger(TagExtractor(NAMES, 2, wordnet), truth=True)
    captions = ["glass, cat, man, dog", "gas and cream", "a doe"]
    fields = tagger(captions[1:2], captions)
    assert [NAMES[id] for id in fields["tags"]] == ["cream", "gas"]
    assert fields["true_tags"].tolist() == [0, 1, 2, 4, 8, 13, 14, -1]
    fields = tagger(captions[2:], [*captions, "café, ice cream"])  # given ones have their place
    assert fields["true_tags"].tolist() == [0, 1, 2, 4, 6, 8, 12, 14]


def test_weights_fall_with_the_root_of_the_count_and_have_mean_one():
    weights = weigh([400, 100, 25])
    np.testing.assert_allclose(weights, np.array([1, 2, 4]) * 3 / 7, rtol=1e-6)


def test_a_list_is_written_and_read_as_it_is(tmp_path):
    path = str(tmp_path / "tags.json")
    tags = make_tag_list(["dog", "hot dog", "cat"], [9, 4, 1], WORDS, ["man"], path)
    assert tags.tokens.tolist() == [[4, 0], [3, 4], [6, 0]]
    assert tags.token_mask.tolist() == [[True, False], [True, True], [True, False]]
    write_tag_list(tags, path, {"source": "a test"})
    again = read_tag_list(path)
    for field in dataclasses.fields(tags):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(tags, field.name))
    assert again.removed == ("man",) and len(again) == 3
    assert again.weights.dtype == np.float32
    write_tag_list(tags, path, {"source": "caf\udce9.txt"})  # a name in Latin-1
    assert read_tag_list(path).names == tags.names
    entry = json.loads((tmp_path / "tags.json").read_text())["tags"][1]
    assert entry == {"name": "hot dog", "count": 4, "weight": entry["weight"], "tokens": [3, 4]}
    in_bucket = "memory://lists/tags.json"
    fsspec.filesystem("memory").pipe(in_bucket, (tmp_path / "tags.json").read_bytes())
    assert read_tag_list(in_bucket).names == tags.names


@pytest.mark.parametrize("length", [16, 40])
def test_tokens_are_those_in_the_middle_of_a_text(data_dir, length):
    text = data_dir / "text"
    bert = WordPieceTokenizer(str(text / "bert-base-uncased-vocab.txt"), length)
    clip = ClipTokenizer(str(text / "clip_bpe_simple_vocab_16e6.txt.gz"), length)
    for tokenizer, ends in ((bert, (101, 102)), (clip, (49406, 49407))):
        tags = make_tag_list(["hot dog", "skateboarder"], [2, 1], tokenizer)
        ids, mask = tokenizer(["hot dog", "skateboarder"])
        for row, real, tokens, kept in zip(ids, mask, tags.tokens, tags.token_mask, strict=True):
            assert row[real].tolist() == [ends[0], *tokens[kept].tolist(), ends[1]]


def test_a_list_goes_with_its_vocabulary_whatever_the_length_of_texts():
    tags = make_tag_list(["dog", "hot dog"], [2, 1], WORDS, path="tags.json")
    tags.check_tokenizer(WORDS)
    tags.check_tokenizer(WordTokenizer(("hot", "dog"), length=9))
    for words, message in (
        (("dog", "hot"), "was made for another vocabulary: the tokens of 'dog'"),
        (("hot", "cat"), "does not fit the tokenizer: .*cannot express the tag 'dog'"),
    ):
        with pytest.raises(UserError, match=f"tags.json {message}"):
            tags.check_tokenizer(WordTokenizer(words, length=6))
    altered = dataclasses.replace(tags, tokens=tags.tokens[::-1])  # as an earlier version's
    with pytest.raises(UserError, match="tags.json was made by an earlier version .*: .*'dog'"):
        altered.check_tokenizer(WORDS)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["dog", "zebra"], "cannot express the tag 'zebra'"),
        (["dog", " "], "cannot express the tag ' '"),
        (["dog", "cat and dog and a cat"], "'cat and dog and a cat' fills a text of 6 tokens"),
        ([], "has no tag"),
    ],
)
def test_a_tag_without_tokens_is_named(names, message):
    with pytest.raises(UserError, match=message):
        make_tag_list(names, [1] * len(names), WORDS)


def write_list(path, **changed) -> str:
    entry = {"name": "dog", "count": 3, "weight": 1.0, "tokens": [4]}
    content = {"format": 1, "tokenizer": "x", "tags": [entry]} | changed
    path.write_text(json.dumps(content))
    return str(path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tags": []}, "has no tag"),
        ({"tags": [{"name": "dog", "count": 3, "tokens": [4]}]}, "'dog'. has no weight"),
        ({"tags": [{"name": "dog", "count": 3, "weight": 1, "tokens": []}]}, "dog'. has no tokens"),
        ({"tags": [{"name": "dog", "count": 3, "weight": 1, "tokens": [4]}] * 2}, "'dog' .* twice"),
        ({"tags": ["dog"]}, "needs a name"),
    ],
)
def test_a_broken_list_is_named_with_its_fault(tmp_path, changed, message):
    path = write_list(tmp_path / "tags.json", **changed)
    with pytest.raises(UserError, match=f"tags.json: .*{message}.*build_tags"):
        read_tag_list(path)


def test_a_value_that_is_no_list_is_refused(tmp_path):
    path = tmp_path / "tags.json"
    for text, message in (("{", "is not JSON"), ("[1]", "is no tag list")):
        path.write_text(text)
        with pytest.raises(UserError, match=f"tags.json:? {message}"):
            read_tag_list(str(path))
    with pytest.raises(UserError, match="none.json: there is no such file; .*build_tags"):
        read_tag_list(str(tmp_path / "none.json"))
    with pytest.raises(UserError, match="memory://lists/none.json: there is no such file"):
        read_tag_list("memory://lists/none.json")


def test_names_come_from_open_images_or_any_class_list(tmp_path):
    rows = "/m/011k07,Tortoise\n/m/0k0pj,Nose\n/m/01b9xk,Hot dog\n/m/02,HOT-DOG\n"
    rows += "/g/11,Salt & Pepper"
    expected = ["tortoise", "nose", "hot dog", "salt & pepper"]
    path = tmp_path / "classes.csv"
    for header in ("", "LabelName,DisplayName\n"):
        path.write_text(header + rows)
        assert read_names(str(path)) == expected
    path.write_text("name\nTortoise\nhot_dog\n")
    assert read_names(str(path)) == ["tortoise", "hot dog"]
    path.write_text(rows + ",more")
    with pytest.raises(UserError, match="class 5 is '/g/11,Salt & Pepper,more'"):
        read_names(str(path))
    assert "airplane" in read_names("cifar10")
    with pytest.raises(UserError, match="none.csv"):
        read_names(str(tmp_path / "none.csv"))


def test_of_open_images_the_classes_of_a_file_are_kept(tmp_path):
    path, ids = tmp_path / "classes.csv", tmp_path / "trainable.txt"
    path.write_text("/m/011k07,Tortoise\n/m/0k0pj,Nose\n/m/01b9xk,Hot dog\n")
    ids.write_text("/m/01b9xk\n/m/011k07\n/m/none\n")
    assert read_names(str(path), str(ids)) == ["tortoise", "hot dog"]
    ids.write_text("/m/none\n")
    with pytest.raises(UserError, match="has no id of .*classes.csv, one per line, such as /m/011"):
        read_names(str(path), str(ids))
    with pytest.raises(UserError, match="none.txt cannot be read"):
        read_names(str(path), str(tmp_path / "none.txt"))
    with pytest.raises(UserError, match="cifar10 has no ids"):
        read_names("cifar10", str(ids))


@pytest.fixture
def counted(wordnet, monkeypatch):
    """Chooses tags of captions of which "dog" has 5, "cat" 4, "man" 3, "hot dog" 2."""
    monkeypatch.setenv("NLTK_DATA", wordnet)
    monkeypatch.setattr("nltk.data.path", [wordnet])
    captions = ["dogs", "dog dog"] * 2 + ["a dog and a cat"] + ["cat"] * 3
    captions += ["man"] * 3 + ["hot dogs"] * 2
    return lambda **choice: choose_tags(
        ("man", "cat", "dog", "hot dog", "zebra"), lambda: iter(captions), **choice
    )


def test_tags_are_counted_in_captions_and_the_most_frequent_come_first(counted):
    chosen = counted(min_count=1)
    assert (chosen.names, chosen.counts) == (["dog", "cat", "man", "hot dog"], [5, 4, 3, 2])
    assert (chosen.captions, chosen.candidates, chosen.removed) == (13, 5, [])


def test_rare_tags_go_first_then_the_top_then_the_tail(counted):
    chosen = counted(min_count=3, remove_top=1, max_tags=1)
    assert (chosen.removed, chosen.names) == (["dog"], ["cat"])
    # A compound that is no tag hides nothing: the dogs of "hot dogs" count
    assert counted(min_count=3).counts == [7, 4, 3]
    with pytest.raises(UserError, match="no tag remains: of 5 names 3 occur in at least 3 of 13"):
        counted(min_count=3, remove_top=3)


COMPOUND = (
    "bear",
    "brown bear",
    "dog",
    "hot dog",
    "teddy bear",
    "food",
    "stop sign",
    "sign",
    "cake",
)
COMPOUND += ("wedding cake", "hot dog stand", "water polo ball")


@pytest.mark.parametrize(
    ("which", "left_out"),
    [
        ("all", set()),
        ("without_hypernyms_inside", {"brown bear", "wedding cake"}),
        ("without_hypernyms", {"brown bear", "wedding cake", "hot dog"}),
    ],
)
def test_compounds_without_hypernyms(wordnet, which, left_out):
    """§3.2, whose example "hot dog" is food by WordNet, and no dog."""
    kept = keep_compounds(COMPOUND, which, WordNet(wordnet))
    assert kept == [name for name in COMPOUND if name not in left_out]


def test_a_compound_without_its_hypernym_in_the_list_stays(wordnet):
    dictionary = WordNet(wordnet)
    for which in ("without_hypernyms_inside", "without_hypernyms"):
        assert keep_compounds(["brown bear", "dog"], which, dictionary) == ["brown bear", "dog"]
    # Any distance, and several words: a Cardigan Welsh corgi is a Welsh corgi, and a dog.
    dogs = ["welsh corgi", "cardigan welsh corgi"]
    assert keep_compounds(dogs, "without_hypernyms_inside", dictionary) == dogs[:1]
    dogs[0] = "dog"
    assert keep_compounds(dogs, "without_hypernyms_inside", dictionary) == dogs
    assert keep_compounds(dogs, "without_hypernyms", dictionary) == dogs[:1]


@pytest.mark.slow
def test_nouns_of_the_corpus_are_tags_without_a_list_of_names(wordnet):
    dictionary = WordNet(wordnet)
    nouns = set(list_nouns(dictionary))
    assert {"dog", "hot dog", "gas", "bus", "tennis court", "man"} <= nouns
    assert not {"dogs", "men", "a", "in", "who", "can", "2", "quickly", "a la carte"} & nouns
    mostly = ["dog", "water", "tennis court", "frisbee", "group"]
    assert [name for name in mostly if dictionary.is_mostly_noun(name)] == mostly
    for name in ("run", "white", "two", "look", "young", "standing"):
        assert not dictionary.is_mostly_noun(name)


PHRASES = ("a dog", "a cat and a dog", "hot dogs", "nothing", "a man and cats")
"""Captions of examples: number n has n, n + 1 and n + 2."""


def make_source(size: int = 20) -> ArraySource:
    images = np.zeros((size, 4, 4, 3), np.uint8)
    images[:, 0, 0, 0] = np.arange(size)
    captions = [[PHRASES[(n + k) % len(PHRASES)] for k in range(3)] for n in range(size)]
    return ArraySource(images, captions, np.arange(size) % 2)


class KeepTexts:
    """A tokenizer whose ids are the numbers of the phrases."""

    vocab_size, length, fingerprint = len(PHRASES) + 1, 1, "phrases"

    def __call__(self, texts):
        ids = np.array([[PHRASES.index(text) if text else -1] for text in texts], np.int32)
        return ids.reshape(-1, 1), ids.reshape(-1, 1) >= 0


@pytest.fixture(scope="module")
def tagger(wordnet) -> Tagger:
    return Tagger(TagExtractor(NAMES, 4, wordnet), truth=True)


def make_loader(tagger, **choice) -> TrainLoader:
    choice = {"tokenizer": KeepTexts(), "tagger": tagger} | choice
    return loaders.make_loader(make_source(), **choice)


@pytest.mark.parametrize("captions_per_image", [1, 2])
def test_the_tags_of_a_batch_are_those_of_its_own_texts(tagger, captions_per_image):
    extract = tagger._extract
    with make_loader(tagger, captions_per_image=captions_per_image) as loader:
        for step in range(4):
            batch = loader.batch(step)
            for row in range(8):
                ids = batch["text"][row].reshape(-1)
                texts = [PHRASES[id] for id in ids]
                np.testing.assert_array_equal(batch["tags"][row], extract(texts))
                number = int(batch["image"][row, 0, 0, 0])
                captions = [PHRASES[(number + k) % len(PHRASES)] for k in range(3)]
                expected = set(extract(captions).tolist()) - {-1}
                assert set(batch["true_tags"][row].tolist()) - {-1} == expected
                assert set(batch["tags"][row].tolist()) - {-1} <= expected


def test_any_split_over_processes_has_the_same_tags(tagger):
    with make_loader(tagger) as whole:
        expected = whole.batch(3)
        for rows in (np.array([0, 3, 4]), np.array([1, 2, 5, 6, 7])):
            with make_loader(tagger, rows=rows) as part:
                for name, values in part.batch(3).items():
                    np.testing.assert_array_equal(values, expected[name][rows])


def test_captions_that_are_not_used_are_in_the_truth_alone(tagger):
    with make_loader(tagger, captions_used=1) as loader:
        batches = [loader.batch(step) for step in range(3)]
    for batch in batches:
        np.testing.assert_array_equal(batch["text"][:, 0], batch["image"][:, 0, 0, 0] % 5)
    given, true = (np.concatenate([b[name] for b in batches]) for name in ("tags", "true_tags"))
    assert any(set(t) - set(g) for g, t in zip(given.tolist(), true.tolist(), strict=True))
    for used, count in ((0, 1), (1, 2)):
        with pytest.raises(ValueError, match=f"captions_used = {used}"):
            make_loader(tagger, captions_used=used, captions_per_image=count)


def test_class_texts_have_the_tags_of_their_class(wordnet):
    tokenizer = WordTokenizer(("a", "photo", "of", "dogs", "hot", "dog"), length=8)
    tagger = Tagger(TagExtractor(NAMES, 4, wordnet))
    classes = ClassList.from_names(("dogs", "hot dog"))
    choice = {"tokenizer": tokenizer, "classes": classes, "templates": ("a photo of a {}.",)}
    with make_loader(tagger, **choice) as loader:
        batch = loader.batch(0)
    assert "true_tags" not in batch
    expected = np.where(batch["label"] == 0, NAMES.index("dog"), NAMES.index("hot dog"))
    np.testing.assert_array_equal(batch["tags"][:, 0], expected)
    assert (batch["tags"][:, 1:] == -1).all()


def test_a_mixture_has_the_tags_of_its_parts(tagger):
    def stream(tagger, seed):
        return loaders.make_stream(make_source(), 4, "", KeepTexts(), tagger=tagger, seed=seed)

    one, two = stream(tagger, 0), stream(tagger, 7)
    with TrainLoader({"one": one, "two": two}) as mixture, TrainLoader(one) as first:
        with TrainLoader(two) as second:
            batch, parts = mixture.batch(2), (first.batch(2), second.batch(2))
    for name in ("tags", "true_tags", "text"):
        rows = np.stack([part[name] for part in parts], axis=1)
        np.testing.assert_array_equal(batch[name], rows.reshape(8, -1))
    with pytest.raises(UserError, match="shape of tags is .* in one and none at all in two"):
        TrainLoader({"one": one, "two": stream(None, 0)})
