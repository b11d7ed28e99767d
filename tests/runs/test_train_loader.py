"""What a config says of its training data reaches the parts of the loader."""

import json

import numpy as np
import pytest

from big_align.core.errors import BrokenDataError, ConfigError
from big_align.data.labels.classes import read_classes
from big_align.data.loading.image_pipeline import ImagePipeline
from big_align.data.loading.loader import TrainLoader
from big_align.data.loading.mixture import part_seed
from big_align.data.loading.rows import RowStream
from big_align.data.loading.stream import ExampleStream
from big_align.data.loading.text_samplers import CaptionSampler, NoTextSampler, TemplateSampler
from big_align.data.sources.digits import DIGIT_CLASSES, digits_source
from big_align.data.text.tokenizers import WordTokenizer
from big_align.runs import build
from tests.data.loaders import assert_equal
from tests.data.samples import BROKEN, break_some

WORDS = WordTokenizer(("a", "scan", "of", "the", "round", *DIGIT_CLASSES), length=12)
DIGITS = {"source": {"name": "digits", "split": "train"}, "transform": "random_crop(6)"}
SEED, SIZE = 3, 16


def build_loader(rows=None, size=SIZE, **data) -> TrainLoader:
    config = {"data": data, "objective": {}, "batch_size": size, "seed": SEED}
    return build.build_train_loader(config, WORDS, rows)


@pytest.mark.parametrize(
    ("data", "where"),
    [(DIGITS, "config.data"), ({"mixture": {"d": DIGITS | {"weight": 1.0}}}, ".*mixture.d")],
)
def test_a_batch_larger_than_the_data_is_told_with_the_field_of_the_run(data, where):
    told = rf"{where}: batch_size is 4096 and .*, as its own negative; write --config.batch_size=F"
    with pytest.raises(ConfigError, match=told):
        build_loader(size=4096, **data)


@pytest.fixture
def classes(tmp_path) -> str:
    """A class list with descriptions."""
    path = tmp_path / "classes.json"
    path.write_text(json.dumps([{"name": n, "description": "round"} for n in DIGIT_CLASSES]))
    return str(path)


def assert_same_batches(one: TrainLoader, other: TrainLoader) -> None:
    with one, other:
        for step in (0, 100):
            assert_equal(one.batch(step), other.batch(step))


def test_captions_of_one_source():
    built = build_loader(
        **DIGITS, window=50, captions_per_image=2, captions_used=3, views_per_image=2
    )
    stream = ExampleStream(digits_source("train"), SIZE, SEED, window=50)
    images = ImagePipeline("random_crop(6)", views_per_image=2)
    texts = CaptionSampler(WORDS, captions_per_image=2, captions_used=3)
    assert_same_batches(built, TrainLoader(RowStream(stream, texts, images)))


def test_no_texts_and_the_rows_of_a_process():
    rows = np.array([0, 5, 6])
    built = build_loader(rows, **DIGITS, captions_per_image=0)
    stream = ExampleStream(digits_source("train"), SIZE, SEED)
    made = RowStream(stream, NoTextSampler(WORDS), ImagePipeline("random_crop(6)"))
    assert_same_batches(built, TrainLoader(made, rows))


def test_classes_and_captions_of_a_mixture(classes):
    described = ("a {}, {description}", "the {}: {description}")
    labels = {"classes": classes, "templates": described}
    parts = {
        "one": DIGITS | labels | {"weight": 0.25},
        "pairs": DIGITS | {"weight": 0.5, "window": 40},
    }
    parts["two"] = parts["one"] | {"templates": ("{}",)}
    built, images = build_loader(mixture=parts), "random_crop(6)"

    def stream(name: str, rows: int, **window: int) -> ExampleStream:
        return ExampleStream(digits_source("train"), rows, part_seed(SEED, name), **window)

    listed = read_classes(classes)
    described = TemplateSampler(WORDS, listed, 1, described)
    named = TemplateSampler(WORDS, listed, 1, ("{}",))
    streams = {
        "one": RowStream(stream("one", 4), described, ImagePipeline(images)),
        "pairs": RowStream(
            stream("pairs", 8, window=40),
            CaptionSampler(WORDS, keep_label=False),
            ImagePipeline(images),
        ),
        "two": RowStream(stream("two", 4), named, ImagePipeline(images)),
    }
    assert_same_batches(built, TrainLoader(streams))


def test_labels_count_on_from_list_to_list(classes, tmp_path):
    other = tmp_path / "other.json"
    other.write_text(json.dumps(list(DIGIT_CLASSES)))
    labels = {"one": DIGITS | {"classes": classes}, "two": DIGITS | {"classes": str(other)}}
    mixture = {name: part | {"weight": 0.5} for name, part in labels.items()}
    with build_loader(mixture=mixture, templates=("{}",)) as loader:
        label = np.concatenate([loader.batch(step)["label"] for step in range(20)])
    assert set(label[::2].tolist()) == set(range(10))
    assert set(label[1::2].tolist()) == set(range(10, 20))


@pytest.mark.slow
@pytest.mark.parametrize("mixed", [False, True])
def test_threads_processes_and_prefetch_are_those_of_the_whole_batch(mixed):
    parts = {"a": DIGITS | {"weight": 0.25}, "b": DIGITS | {"weight": 0.75}}
    shared = {"num_threads": 5, "num_processes": 2, "prefetch": 7}
    with build_loader(**({"mixture": parts} if mixed else DIGITS), **shared) as loader:
        assert (loader.num_threads, loader.num_processes, loader._prefetch) == (5, 2, 7)
    for field, value in shared.items():
        mixture = {"a": parts["a"] | {field: value}, "b": parts["b"]}
        message = f"config.data.mixture.a.{field}: all parts share config.data.{field}"
        with pytest.raises(ConfigError, match=message):
            build_loader(mixture=mixture)


def test_the_fraction_of_broken_examples(tmp_path):
    break_some(tmp_path, BROKEN)
    source = {"name": "tar", "path": f"{tmp_path}/train-*.tar"}
    with build_loader(source=source, transform="", max_broken_fraction=0.1) as loader:
        for step in range(12):
            loader.batch(step)
        assert loader.broken == len(BROKEN)
    with build_loader(source=source, transform="", max_broken_fraction=0.02) as loader:
        with pytest.raises(BrokenDataError, match="max_broken_fraction=0.02"):
            for step in range(12):
                loader.batch(step)
