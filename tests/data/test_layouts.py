"""Every layout of one data set gives the same examples, and the same recall to the last digit."""

import dataclasses
import zlib

import layouts
import numpy as np
import pytest
from loaders import make_loader

from big_align.config.components.signatures import make_named
from big_align.config.components.tables import SOURCES
from big_align.core.errors import ConfigError, UserError
from big_align.data import boundary
from big_align.data.derived.split_source import SplitSource
from big_align.data.examples import Source
from big_align.data.sources.array_source import ArraySource
from big_align.data.text.tokenizers import WordTokenizer
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.retrieval import Retrieval


def open_source(layout, folder):
    return make_named(SOURCES, layout(folder / layout.__name__), "config.data.source")


@pytest.mark.slow
@pytest.mark.parametrize("layout", layouts.LAYOUTS, ids=lambda layout: layout.__name__)
def test_processes_read_every_layout_as_threads_do(layout, tmp_path):
    source, tokenizer = open_source(layout, tmp_path), WordTokenizer(("dog",), length=4)
    with (
        make_loader(source, 8, "", tokenizer, num_processes=0) as threads,
        make_loader(source, 8, "", tokenizer, num_processes=1) as processes,
    ):
        for step in range(4):
            expected, actual = threads.batch(step), processes.batch(step)
            assert expected.keys() == actual.keys()
            for name, array in expected.items():
                np.testing.assert_array_equal(actual[name], array, err_msg=name)


def read_all(source):
    sizes = source.shard_sizes.tolist()
    return [source.read(shard, n) for shard, size in enumerate(sizes) for n in range(size)]


class NoisyEmbedder(Embedder):
    """Embeds an image by its pixels, and a text near the image that its first word tells."""

    def __init__(self, batch_size=7):
        self.batch_size, self.rows = batch_size, np.arange(batch_size)
        self._project = np.random.default_rng(0).normal(size=(8 * 8 * 3, 16))
        pixels = np.random.default_rng(0).integers(0, 256, (layouts.COUNT, 8, 8, 3), np.uint8)
        self._images = self._embed(pixels)

    def _embed(self, pixels):
        features = (pixels.reshape(len(pixels), -1) - 127.5) @ self._project
        return features / np.linalg.norm(features, axis=1, keepdims=True)

    def embed_images(self, batches, count):
        rows = [(self._embed(batch["image"]), batch["mask"]) for batch in batches]
        return tuple(np.concatenate(x)[:count] for x in zip(*rows, strict=True))

    def embed_texts(self, text, text_mask):
        noise = [np.random.default_rng(seed).normal(size=16) for seed in text[:, 1].tolist()]
        near = self._images[text[:, 0]] + 0.4 * np.array(noise)
        return near / np.linalg.norm(near, axis=1, keepdims=True)


def tokenize(texts):
    text = [(int(t.split()[0]), zlib.crc32(t.encode()) >> 1) for t in texts]
    return np.array(text, np.int32), np.ones((len(text), 2), bool)


tokenize.vocab_size, tokenize.length, tokenize.fingerprint = 256, 2, "first word"


def measure(source):
    return Retrieval(source, "", tokenize)(NoisyEmbedder())


@pytest.mark.parametrize("layout", layouts.LAYOUTS, ids=lambda layout: layout.__name__)
def test_every_layout_gives_the_same_examples_and_the_same_recall(layout, tmp_path):
    source = open_source(layout, tmp_path)
    assert isinstance(source, Source) and not source.broken.sum()
    found = read_all(source)
    assert [example.image for example in found] == layouts.IMAGES
    assert [example.captions for example in found] == layouts.CAPTIONS
    sizes = source.shard_sizes.tolist()
    places = [(shard, n) for shard, size in enumerate(sizes) for n in range(size)]
    assert [source.read_text(*place)[0] for place in places] == layouts.CAPTIONS
    assert len({source.name(*place) for place in places}) == layouts.COUNT
    for example, place in zip(found, places, strict=True):
        unseen = boundary.read_without_image(source, *place)
        assert (unseen.image is None) == ("tfrecord" not in layout.__name__)
        assert dataclasses.replace(unseen, image=example.image) == example
    reference = open_source(layouts.tar_of_lists, tmp_path / "reference")
    assert measure(source) == measure(reference)


@pytest.mark.parametrize(
    "layout", [layouts.csv_of_rows, layouts.imagefolder_of_lists, layouts.coco, layouts.files]
)
def test_a_tilde_is_the_home_folder(layout, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    node = layout(tmp_path / "x")
    node["path"] = node["path"].replace(str(tmp_path), "~")
    source = make_named(SOURCES, node, "config.data.source")
    assert [example.captions for example in read_all(source)] == layouts.CAPTIONS


@pytest.mark.parametrize("layout", layouts.LAYOUTS, ids=lambda layout: layout.__name__)
def test_every_layout_with_names_holds_out_the_same_images(layout, tmp_path):
    reference = SplitSource(open_source(layouts.tar_of_lists, tmp_path / "x"), 0.3, held_out=True)
    held = SplitSource(open_source(layout, tmp_path), 0.3, held_out=True)
    same = {e.image for e in read_all(held)} == {e.image for e in read_all(reference)}
    assert same == (layout not in layouts.NAMELESS)


def test_the_recall_of_the_layouts_is_not_trivial(tmp_path):
    result = measure(open_source(layouts.tar_of_lists, tmp_path))
    assert 0.2 < result["text_to_image_r1"] < 0.9 and 0.2 < result["image_to_text_r1"] < 0.95


def decode_pixels():
    return np.random.default_rng(0).integers(0, 256, (layouts.COUNT, 8, 8, 3), np.uint8)


def test_an_example_a_caption_counts_as_the_grouped_source_does(tmp_path, caplog):
    """No source can group arrays: retrieval does, and says so."""
    numbers, texts = zip(*layouts.by_row(), strict=True)
    source = ArraySource(decode_pixels()[list(numbers)], [[text] for text in texts])
    grouped = measure(open_source(layouts.tar_of_lists, tmp_path))
    with caplog.at_level("WARNING", logger="absl"):
        assert measure(source) == grouped
    copies = len(numbers) - layouts.COUNT
    assert f"{copies} of {len(numbers)} examples have the same image" in caplog.text
    assert "array: 4 and array: 27" in caplog.text  # of the first with most captions


def test_unreadable_images_are_no_copies_of_each_other(tmp_path):
    class Torn(ArraySource):
        def read(self, shard, index):
            example = super().read(shard, index)
            example.image = b"torn" if index in (3, 5) else example.image
            return example

    torn = Torn(decode_pixels(), layouts.CAPTIONS)
    kept = [n for n in range(layouts.COUNT) if n not in (3, 5)]
    whole = ArraySource(decode_pixels()[kept], [layouts.CAPTIONS[n] for n in kept])
    retrieval = Retrieval(torn, "resize(8)", tokenize, max_broken_fraction=0.5)
    assert retrieval(NoisyEmbedder()) == Retrieval(whole, "resize(8)", tokenize)(NoisyEmbedder())


def test_a_picture_that_stands_for_missing_ones_is_refused():
    pixels = np.concatenate([decode_pixels(), np.zeros((101, 8, 8, 3), np.uint8)])
    source = ArraySource(pixels, [["0 x"]] * len(pixels))
    with pytest.raises(UserError, match="101 examples, such as array: 24 and array: 25, have one"):
        measure(source)


def test_retrieval_of_classes_without_captions_is_refused_before_it_embeds():
    source = ArraySource(decode_pixels(), [[]] * layouts.COUNT, np.zeros(layouts.COUNT, int))
    with pytest.raises(UserError, match="none of 16 examples .*array: 0 has none.* zero_shot"):
        Retrieval(source, "", tokenize)


@pytest.mark.parametrize(
    ("layout", "change", "message"),
    [
        (layouts.tar_of_lists, {"caption": "txt"}, "has an image and 'txt'; x.tar has the members"),
        (layouts.csv_of_rows, {"image": "img"}, r"'img'.*--config.data.source.image=COLUMN"),
        (layouts.files, {"caption": "cap"}, "png.*txt.*--config.data.source.caption=ENDING"),
        (layouts.files, {"path": "/nowhere"}, "no file matches '/nowhere'"),
        (layouts.parquet, {"image": "txt"}, "'txt' holds string, not encoded images"),
        (layouts.parquet, {"caption": "title"}, "'title'.*--config.data.source.caption=COLUMN"),
        (layouts.coco, {"images": "/nowhere"}, "there is no file /nowhere/00000.png"),
        (layouts.tfrecord, {"path": []}, r"the path \[\] names no file"),
    ],
)
def test_a_wrong_field_is_an_error_that_names_the_right_command(layout, change, message, tmp_path):
    node = layout(tmp_path / "x") | change
    with pytest.raises(ConfigError, match=message):
        make_named(SOURCES, node, "config.data.source")
