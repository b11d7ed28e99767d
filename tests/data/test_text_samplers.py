"""Texts and labels: captions, templates with the class, or none."""

import dataclasses
import itertools

import numpy as np
import pytest
from loaders import WORDS, assert_equal, make_loader
from samples import make_members, write_tar

from big_align.core.errors import UserError
from big_align.data.examples import BrokenExample, Example, WrongLabel
from big_align.data.labels.classes import ClassList, read_classes
from big_align.data.loading import text_samplers
from big_align.data.loading.shuffle import PositionRandom
from big_align.data.loading.text_samplers import CaptionSampler, NoTextSampler
from big_align.data.sources.array_source import ArraySource
from big_align.data.sources.tar_source import TarSource
from big_align.data.text.tokenizers import WordTokenizer


def draw(sampler, captions=("number 1", "n 2", "3"), labels=(4,), position=0):
    example = Example("key", None, list(captions), tuple(labels))
    return sampler.draw(example, "name", PositionRandom(0, position))


def test_captions_are_drawn_from_those_that_are_used():
    captions = ["number 1", "n 2", "3"]
    for used, drawn_from in ((None, captions), (3, captions), (2, captions[:2]), (1, captions[:1])):
        sampler = CaptionSampler(WORDS, captions_used=used)
        drawn = [draw(sampler, captions, position=n)[0] for n in range(60)]
        assert {text for texts in drawn for text in texts} == set(drawn_from)
    with pytest.raises(ValueError, match="captions_per_image = 0 must be at least 1"):
        CaptionSampler(WORDS, 0)


def test_the_label_is_that_of_the_source_or_none():
    assert draw(CaptionSampler(WORDS))[1] == draw(NoTextSampler(WORDS))[1] == 4
    for sampler in (CaptionSampler(WORDS), NoTextSampler(WORDS)):
        assert draw(sampler, labels=())[1] == -1
    assert draw(CaptionSampler(WORDS, keep_label=False))[1] == -1
    assert draw(NoTextSampler(WORDS, keep_label=False))[1] == -1
    assert draw(NoTextSampler(WORDS), labels=(3, 4)) == ([], -1)
    for keep_label in (True, False):
        with pytest.raises(WrongLabel, match="the labels 3, 4, where one is wanted"):
            draw(CaptionSampler(WORDS, keep_label=keep_label), labels=(3, 4))
    with pytest.raises(BrokenExample, match="it has no caption"):
        draw(CaptionSampler(WORDS), captions=())


@pytest.mark.parametrize("count", [1, 2, 3])
def test_ids_and_masks_are_those_of_the_texts_and_what_is_missing_is_masked(count):
    texts = [["number 1"], ["n 2", "3"], ["3", "n 2", "number 1"]]
    texts = [row[:count] for row in texts]
    text, text_mask = CaptionSampler(WORDS, count).tokenize(texts)
    shape = (3, count, 4) if count > 1 else (3, 4)
    assert text.shape == text_mask.shape == shape
    rows = text.reshape(3, count, 4), text_mask.reshape(3, count, 4)
    for row, ids, masks in zip(texts, *rows, strict=True):
        expected, real = WORDS(row)
        np.testing.assert_array_equal(ids[: len(row)], expected)
        np.testing.assert_array_equal(masks[: len(row)], real)
        assert not masks[len(row) :].any()


def test_no_texts_are_ids_of_the_length_of_the_tokenizer():
    text, text_mask = NoTextSampler(WORDS).tokenize([[], []])
    assert text.shape == text_mask.shape == (2, 0, 4) and text_mask.dtype == bool


def test_several_captions_of_an_image_are_different_and_missing_ones_are_masked():
    noise = np.zeros((6, 8, 8, 3), np.uint8)
    captions = [[f"{n}", f"n {n}", f"number {n}"][: 1 + n % 3] for n in range(6)]
    source = ArraySource(noise, captions, np.arange(6))
    with make_loader(source, batch_size=6, captions_per_image=2) as loader:
        seen = [set() for _ in range(6)]
        for step in range(20):
            batch = loader.batch(step)
            assert batch["text"].shape == batch["text_mask"].shape == (6, 2, 4)
            for label, texts, masks in zip(
                batch["label"], batch["text"], batch["text_mask"], strict=True
            ):
                drawn = [tuple(t[m]) for t, m in zip(texts, masks, strict=True) if m.any()]
                assert len(set(drawn)) == len(drawn) == min(2, len(captions[label]))
                seen[label] |= set(drawn)
    text, text_mask = WORDS([c for row in captions for c in row])
    every = [tuple(t[m]) for t, m in zip(text, text_mask, strict=True)]
    assert [len(s) for s in seen] == [1, 2, 3, 1, 2, 3] and set().union(*seen) == set(every)


CLASSES = ClassList(
    tuple(f"number {n}" for n in range(10)), ("", *["n"] * 9), tuple(f"n{n:08d}" for n in range(10))
)


def make_labeled(labels, class_names=None) -> ArraySource:
    noise = np.random.default_rng(0).integers(0, 256, (len(labels), 8, 8, 3), np.uint8)
    return ArraySource(noise, [[]] * len(labels), labels, class_names=class_names)


def test_the_text_of_a_labeled_image_is_a_template_with_its_class():
    templates = ("{}", "n {} n")
    source = make_labeled(np.arange(40) % 10)
    kept = {"classes": CLASSES, "templates": templates, "label_offset": 100}
    with make_loader(source, batch_size=40, **kept) as loader:
        batches = [loader.batch(step) for step in range(20)]
        rows = np.arange(7, 21)
        with make_loader(source, batch_size=40, rows=rows, num_threads=1, **kept) as part:
            assert_equal(part.batch(3), {name: x[rows] for name, x in batches[3].items()})
    filled = [[t.replace("{}", name) for name in CLASSES.names] for t in templates]
    texts = np.stack([WORDS(row)[0] for row in filled])
    chosen = []
    for batch in batches:
        label = batch["label"] - 100
        assert sorted(label.tolist()) == sorted(list(range(10)) * 4)
        matches = (texts[:, label] == batch["text"]).all(-1)
        assert (matches.sum(0) == 1).all()
        chosen.append(matches[1])
    assert abs(np.mean(chosen) - 0.5) < 0.06  # either template as often


def test_templates_and_descriptions_of_a_class_list():
    source = make_labeled([3] * 8)
    words = WordTokenizer(("a", "photo", "of", "number", "n", "3", ",", "."), length=9)

    def text_of(**choice):
        with make_loader(source, tokenizer=words, **choice) as loader:
            return loader.batch(0)["text"][0].tolist()

    assert text_of(classes=CLASSES) == words(["a photo of a number 3."])[0][0].tolist()
    own = ClassList(CLASSES.names, CLASSES.descriptions, CLASSES.ids, ("of {}",))
    assert text_of(classes=own) == words(["of number 3"])[0][0].tolist()
    described = text_of(classes=own, templates=("of {}, {description}",))
    assert described == words(["of number 3, n"])[0][0].tolist()
    with make_loader(
        source, tokenizer=words, classes=CLASSES, templates=("{}", "a {}"), captions_per_image=3
    ) as loader:
        batch = loader.batch(0)  # different templates, and a third that is not there
    both, _ = words(["number 3", "a number 3"])
    for row, mask in zip(batch["text"].tolist(), batch["text_mask"], strict=True):
        assert sorted(row[:2]) == sorted(both.tolist())
        assert mask.any(1).tolist() == [True, True, False]
    with pytest.raises(ValueError, match="needs one {} where the class name goes"):
        make_loader(source, classes=CLASSES, templates=("a photo",))
    bare = ClassList.from_names(CLASSES.names)
    with pytest.raises(
        ValueError, match="10 of 10 classes have no description, 'number 0' the fir"
    ):
        make_loader(source, classes=bare, templates=("a {}, {description}",))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 10, 3], r"array: 1 has the label 10, .* its 10 classes are the labels 0 to 9"),
        ([0, 3, -1], r"array: 2 has no label, and a class list of 10 is set: let the source"),
        (None, r"array: 0 has no label"),
    ],
)
def test_wrong_labels_stop_before_anything_is_read(labels, message):
    class Unread(ArraySource):
        def read(self, shard, index):
            raise AssertionError("an image was read")

    source = Unread(np.zeros((3, 8, 8, 3), np.uint8), [[]] * 3, labels)
    with pytest.raises(UserError, match=message):
        make_loader(source, batch_size=3, classes=CLASSES)


def test_a_source_with_a_label_below_none_is_refused():
    """Sources of this package refuse it as they read; one of a user may not."""

    class Below(ArraySource):
        def read_text(self, shard, index):
            captions, labels = super().read_text(shard, index)
            return captions, (-2,) if index == 1 else labels

    source = Below(np.zeros((3, 8, 8, 3), np.uint8), [[]] * 3, [0, 1, 2])
    with pytest.raises(UserError, match="array: 1 has the label -2, .* the labels 0 to 9"):
        make_loader(source, batch_size=3, classes=CLASSES)


def test_labels_are_looked_at_evenly_and_the_rest_as_it_is_read(monkeypatch):
    monkeypatch.setattr(text_samplers, "CHECKED_FIRST", 50)
    asked = []

    class Watching(ArraySource):
        def read_text(self, shard, index):
            asked.append(index)
            return super().read_text(shard, index)

    labels = np.zeros(200, int)
    labels[101] = 10
    source = Watching(np.zeros((200, 8, 8, 3), np.uint8), [[]] * 200, labels)
    text_samplers.check_labels(source, 10)
    assert sorted(asked) == list(range(0, 200, 4))
    with make_loader(source, batch_size=20, classes=CLASSES) as loader:
        with pytest.raises(UserError, match="array: 101 has the label 10"):
            for _ in itertools.islice(loader.iterate(0), 10):
                pass


def test_a_label_that_is_no_number_is_an_error_only_with_a_class_list(tmp_path):
    members = [part for n in range(200) for part in make_members(n)]
    members = [(name, b"cat" if name == "000007.cls" else data) for name, data in members]
    source = TarSource(write_tar(tmp_path / "x.tar", members), label="cls")
    with make_loader(source, batch_size=8) as loader:
        for _ in itertools.islice(loader.iterate(0), 25):
            pass
        assert loader.broken == 1
    with pytest.raises(
        UserError, match="x.tar: 000007: the label is 'cat', not an integer; csv and"
    ):
        make_loader(source, batch_size=8, classes=CLASSES)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ((4, 5), "array: 7: it has the labels 4, 5, where one is wanted"),
        (None, "array: 7: no digit"),
    ],
)
def test_a_wrong_label_that_is_found_late_is_an_error_only_with_a_class_list(
    monkeypatch, labels, message
):
    monkeypatch.setattr(text_samplers, "CHECKED_FIRST", 1)

    class Wrong(ArraySource):
        def read(self, shard, index):
            example = super().read(shard, index)
            if index == 7 and labels is None:
                raise WrongLabel("no digit")
            return dataclasses.replace(example, labels=labels) if index == 7 else example

    size = 200  # one broken example in as many is allowed
    source = Wrong(np.zeros((size, 8, 8, 3), np.uint8), [["n"]] * size, np.arange(size) % 10)
    with make_loader(source, batch_size=20, classes=CLASSES) as loader:
        with pytest.raises(UserError, match=message):
            for step in range(10):
                loader.batch(step)
    with make_loader(source, batch_size=20) as loader:
        for step in range(10):
            loader.batch(step)
        assert loader.broken == 1


def test_sources_that_disagree_with_the_class_list():
    names = CLASSES.names
    for agreeing in (names, CLASSES.ids, [n.upper().replace(" ", "_") for n in names]):
        source = make_labeled(np.arange(10), tuple(agreeing))
        make_loader(source, classes=CLASSES).close()
    make_loader(make_labeled(np.arange(9), names[:9]), classes=CLASSES).close()
    mixed = (*names[:4], *CLASSES.ids[4:])
    for class_names, message in (
        (
            (*names[:4], "cat", "dog", *names[6:]),
            "the source of array: label 4 is 'cat', which is no class of the class list; 2 of its "
            "10 classes are not among the 10 there, 'number 0' the first. Name a list that has",
        ),
        (
            (mixed[1], mixed[0], *mixed[2:]),
            "label 0 is 'number 1', which is 1 in the class list; `join_labels.source, classes.`",
        ),
    ):
        with pytest.raises(UserError, match=message):
            make_loader(make_labeled(np.arange(10), class_names), classes=CLASSES)


@pytest.mark.slow
def test_class_lists_of_real_data_fit_their_labels(data_dir):
    for folder, shards in (("grocery", "iconic-*.tar"), ("tiny_imagenet", "val-*.tar")):
        classes = read_classes(f"{data_dir}/{folder}/classes.json")
        source = TarSource(f"{data_dir}/{folder}/{shards}", caption="", label="cls")
        words = WordTokenizer(("a",), length=12)
        kept = {"tokenizer": words, "transform": "resize(8)", "classes": classes}
        with make_loader(source, batch_size=16, **kept) as loader:
            batch = loader.batch(0)
        assert (batch["label"] >= 0).all() and (batch["label"] < len(classes)).all()
        short = ClassList.from_names(classes.names[:-1])
        with pytest.raises(UserError, match=f"which is not in the class list: its {len(short)}"):
            make_loader(source, batch_size=16, **{**kept, "classes": short})
