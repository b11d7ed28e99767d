"""The loader as a `tf.data.Dataset`, of a config or a loader, and the function of the page."""

import gc
import io
import json

import ml_collections
import numpy as np
import pytest
from etils import epy
from PIL import Image

import big_align
from big_align.data.loading.loader import TrainLoader
from big_align.data.tf_data.batch_values import Limits
from big_align.data.tf_data.dataset_loader import DatasetLoader
from big_align.data.tf_data.facts import facts_of
from big_align.errors import BrokenDataError
from big_align.runs import build
from big_align.runs.pipelines import as_dataset, image_text
from tests.data.loaders import assert_equal
from tests.data.samples import write_tar
from tests.manual import read_blocks

with epy.lazy_imports():  # for seconds, which tests that are not run need not wait
    import tensorflow as tf

CROP = "random_resized_crop(40)|flip_horizontal"
LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789"]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
PIECES = [*SPECIAL, *LETTERS, *("##" + letter for letter in LETTERS), "dog", "photo"]
LIMITS = Limits({"text": len(PIECES)}, (-2.1, 2.6))


def make_picture(number: int) -> np.ndarray:
    """Smooth colors with an edge, of another size for each number."""
    random = np.random.default_rng(number)
    coarse = Image.fromarray(random.integers(0, 256, (5, 7, 3), np.uint8))
    height, width = random.integers(50, 130, 2).tolist()
    pixels = np.array(coarse.resize((width, height), Image.Resampling.BICUBIC))
    pixels[height // 2 :, : width // 3] //= 2
    return pixels


def encode(number: int) -> tuple[str, bytes]:
    """Encodes a picture in one of the ways that people have; the first three are plain JPEG."""
    image, kind = Image.fromarray(make_picture(number)), number % 8
    if kind == 3:
        image = image.convert("L")
    elif kind == 4:
        image = image.convert("CMYK")
    elif kind == 6:
        image.putalpha(128)
    exif = Image.Exif()
    exif[0x0112] = 6 if kind == 5 else 1
    options = {"quality": 80 + kind, "subsampling": kind % 3, "progressive": kind == 1}
    if kind in (2, 5):
        options["exif"] = exif
    file = io.BytesIO()
    image.save(file, "PNG") if kind >= 6 else image.save(file, "JPEG", **options)
    return ("png" if kind >= 6 else "jpg"), file.getvalue()


def write_pictures(folder, total=64, spoil=lambda number, data: data, shards=3):
    per_shard = -(-total // shards)
    for shard in range(shards):
        members = []
        for number in range(shard * per_shard, min(total, (shard + 1) * per_shard)):
            extension, data = encode(number)
            captions = [f"photo {number}", f"Dog number {number}é ", "a dog"][: 1 + number % 3]
            facts = json.dumps({"captions": captions}).encode()
            name = f"{number:05d}"
            members += [(f"{name}.{extension}", spoil(number, data)), (f"{name}.json", facts)]
            members += [(f"{name}.cls", str(number % 10).encode())]
        write_tar(folder / f"train-{shard}.tar", members)
    return {"name": "tar", "path": f"{folder}/train-*.tar", "caption": "json.captions"}


@pytest.fixture
def config(tmp_path):
    """Pictures in three shards, WordPiece, batches of 12."""
    vocabulary = tmp_path / "vocabulary.txt"
    vocabulary.write_text("\n".join(PIECES) + "\n")
    return {
        "seed": 3,
        "batch_size": 12,
        "data": {"source": write_pictures(tmp_path), "transform": CROP, "num_threads": 2},
        "tokenizer": {"name": "wordpiece", "vocabulary": str(vocabulary), "length": 9},
    }


def change(config, **data):
    return config | {"data": config["data"] | data}


def take(dataset, count: int) -> list[dict]:
    return list(dataset.take(count).as_numpy_iterator())


def loader_batches(config, start: int, count: int, rows=None) -> list[dict]:
    tokenizer = build.make_tokenizer(config)
    with build.build_train_loader(config, tokenizer, rows) as loader:
        batches = loader.iterate(start)
        return [next(batches) for _ in range(count)]


def assert_same(got: list[dict], wanted: list[dict]) -> None:
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted, strict=True):
        assert one.keys() == other.keys()
        assert_equal(one, other)


def test_it_has_the_batches_of_the_loader_from_any_step_on(config):
    wanted = loader_batches(config, 3, 4)  # over the end of an epoch
    assert_same(take(image_text(config, 3), 4), wanted)
    assert_same(take(image_text(config, 5), 2), wanted[2:])


def test_each_process_has_its_rows_of_the_same_batches(config):
    whole = take(image_text(config, 2), 2)
    for rows in (np.arange(0, 12, 2), np.array([1, 3, 5, 7, 9, 11]), np.array([4])):
        wanted = [{name: array[rows] for name, array in batch.items()} for batch in whole]
        assert_same(take(image_text(config, 2, rows), 2), wanted)


def test_the_loader_ends_with_the_last_iterator(config, monkeypatch):
    """Threads and processes of a data set that nobody reads any more would stay to the end."""
    closed = []
    monkeypatch.setattr(TrainLoader, "close", lambda self: closed.append(self))
    batches = image_text(config).as_numpy_iterator()
    next(batches)
    gc.collect()
    assert not closed
    next(batches)
    del batches
    gc.collect()
    assert len(closed) == 1


def spoil(number: int, data: bytes) -> bytes:
    """Breaks every seventh picture."""
    return data if number % 7 else b"no image at all"


def test_broken_images_are_counted_and_replaced_as_in_the_loader(tmp_path, config):
    config = change(config, source=write_pictures(tmp_path, spoil=spoil), max_broken_fraction=0.5)
    dataset = image_text(config)
    assert_same(take(dataset, 6), loader_batches(config, 0, 6))
    assert facts_of(dataset).broken() == 10


@pytest.mark.slow
def test_too_many_broken_images_end_the_run_with_the_worst_shard(tmp_path, config):
    config = change(config, source=write_pictures(tmp_path, spoil=spoil))
    patient = change(config, max_broken_fraction=0.5)
    example = loader_batches(patient, 0, 1)[0]
    row = {name: (array.shape[1:], array.dtype) for name, array in example.items()}
    make = lambda step: image_text(config, step)  # noqa: E731
    with (
        DatasetLoader(make, row, 12, 12, "config.data.pipeline = 'image_text'", LIMITS) as loader,
        pytest.raises(BrokenDataError, match=r"max_broken_fraction=0.01; .*train-.\.tar"),
    ):
        batches = loader.iterate(0)
        for _ in range(11):
            next(batches)


def test_the_loader_as_a_dataset_has_its_batches(config):
    wanted = loader_batches(config, 4, 3)
    with build.build_train_loader(config, build.make_tokenizer(config)) as loader:
        dataset = as_dataset(loader, start_step=4)
        for _ in range(2):  # every iterator begins there
            for got, want in zip(take(dataset, 3), wanted, strict=True):
                assert_equal(got, want)
        assert facts_of(dataset).epochs(8) == loader.epochs(8)


def test_a_loader_is_made_of_a_config_file_in_one_call():
    flags = "--config.batch_size=8", "--config.seed=5"
    rows = np.array([1, 4])
    with (
        big_align.make_loader("configs/quickstart.py", *flags) as whole,
        big_align.make_loader("configs/quickstart.py", *flags, rows=rows) as part,
    ):
        every, some = next(whole.iterate(30)), next(part.iterate(30))
    assert_equal(some, {name: array[rows] for name, array in every.items()})


def test_the_pipeline_of_the_page_trains_on_tfrecords(config, tmp_path, monkeypatch):
    """Its batches fit the config, and it begins at the step that it is told."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    with tf.io.TFRecordWriter("data/pairs-0.tfrecord") as writer:
        for number in range(30):
            values = {"image": encode(8 * number)[1], "caption": f"photo {number}".encode()}
            feature = {
                name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
                for name, value in values.items()
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())
    (block,) = [b for b in read_blocks("docs/data.md") if "def pairs(" in b.text]
    names = {}
    exec(block.text, names)
    node = ml_collections.ConfigDict(change(config, source={}, transform="resize(64)"))
    node.data.pipeline = "my_pipelines:pairs"
    example = build.example_batch(node, build.make_tokenizer(node))
    row = {name: (array.shape[1:], array.dtype) for name, array in example.items()}
    make = lambda step: names["pairs"](node, step, np.arange(12))  # noqa: E731
    with DatasetLoader(make, row, 12, 12, "the page", LIMITS) as loader:
        batches = loader.iterate(0)
        wanted = [next(batches) for _ in range(4)][3]
        assert_equal(next(loader.iterate(3)), wanted)
    numbers = {f"photo {number}" for number in range(30)}
    text, text_mask = build.make_tokenizer(node)(sorted(numbers))
    known = set(map(str, zip(text.tolist(), text_mask.tolist(), strict=True)))
    made = zip(wanted["text"].tolist(), wanted["text_mask"].tolist(), strict=True)
    assert set(map(str, made)) <= known
