"""The pipeline in TensorFlow's operations has the loader's batches; the loader as a data set."""

import io
import json
import logging

import ml_collections
import numpy as np
import pytest
from etils import epy
from loaders import assert_equal
from PIL import Image
from samples import write_tar

import big_align
from big_align.data.tf_data.batch_values import Limits
from big_align.data.tf_data.dataset_loader import DatasetLoader
from big_align.data.tf_data.facts import facts_of
from big_align.data.tf_pipelines import as_dataset, image_text
from big_align.errors import BrokenDataError, UserError
from big_align.runs import build
from tests.pages import read_blocks

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


def assert_close(got: dict, wanted: dict, most: float = 0.5) -> None:
    """All fields are equal but for pixels, which differ by less than half a level in each image."""
    assert got.keys() == wanted.keys()
    for name in got:
        assert got[name].dtype == wanted[name].dtype and got[name].shape == wanted[name].shape
        if name != "image":
            np.testing.assert_array_equal(got[name], wanted[name])
    off = np.abs(got["image"].astype(int) - wanted["image"])
    assert off.reshape(len(off), -1).mean(axis=1).max() < most


def slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "transform",
    [
        CROP,
        slow("resize(48)|random_crop(40)|flip_horizontal"),
        slow("resize_small(90, method='lanczos')|central_crop(64, 80)"),
        slow("random_resized_crop(8, scale_min=0.5)"),  # decoded at a quarter or an eighth
        slow("random_crop(32)|flip_horizontal(0.9)|resize(50, 44, method='bilinear')"),
        slow("central_crop(48)"),
    ],
)
def test_it_draws_what_the_loader_draws(config, transform):
    config = change(config, transform=transform)
    wanted = loader_batches(config, 3, 4)  # over the end of an epoch
    for got, want in zip(take(image_text(config, 3), 4), wanted, strict=True):
        assert_close(got, want)


@pytest.mark.slow
def test_the_graph_decodes_plain_jpeg_and_python_the_rest(config):
    """What Python makes is the loader's to the last digit."""
    whole = change(config, transform="resize(44)")
    (got,), (wanted,) = take(image_text(whole), 1), loader_batches(whole, 0, 1)
    same = (got["image"] == wanted["image"]).all(axis=(1, 2, 3))
    numbers = [find_number(whole, row) for row in range(len(same))]
    by_python = np.array([number % 8 >= 4 for number in numbers])
    np.testing.assert_array_equal(same, by_python)


def find_number(config, row: int) -> int:
    """Returns the number of the example in a row of the first batch."""
    part = build.build_streams(config, build.make_tokenizer(config))[""]
    ((location, _),) = part.rows.examples.locate(0, np.array([row]))
    return int(part.rows.examples.source.read(*location).key)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"captions_per_image": 2},
        {"captions_per_image": 0},
        {"captions_used": 1, "window": 16},
        {"views_per_image": 2},
    ],
)
def test_texts_views_and_windows_are_the_loaders(config, fields):
    config = change(config, **fields)
    assert_close(take(image_text(config, 1), 1)[0], loader_batches(config, 1, 1)[0])


@pytest.mark.slow
def test_a_mixture_and_a_tokenizer_in_python_are_the_loaders(config, tmp_path):
    classes = tmp_path / "classes.txt"
    classes.write_text("\n".join(f"photo {number}" for number in range(10)) + "\n")
    source = config["data"].pop("source")
    labeled = source | {"label": "cls"}
    config["data"]["mixture"] = {
        "pairs": {"weight": 0.5, "source": source, "transform": "resize(40)"},
        "labels": {"weight": 0.5, "source": labeled, "classes": str(classes)},
    }
    config["tokenizer"] = {"name": "words", "words": ("photo", "a", "dog"), "length": 6}
    (got,), (wanted,) = take(image_text(config, 5), 1), loader_batches(config, 5, 1)
    assert_close(got, wanted)
    assert {-1} < set(got["label"].tolist())


@pytest.mark.slow
def test_each_process_has_its_rows_of_the_same_batches(config):
    whole = take(image_text(config, 2), 2)
    for rows in (np.arange(0, 12, 2), np.array([1, 3, 5, 7, 9, 11]), np.array([4])):
        part = take(image_text(config, 2, rows), 2)
        for got, all_rows in zip(part, whole, strict=True):
            assert_equal(got, {name: array[rows] for name, array in all_rows.items()})


@pytest.mark.slow
def test_beginning_at_a_step_equals_going_there(config):
    assert_equal(take(image_text(config, 7), 1)[0], take(image_text(config, 0), 8)[7])


@pytest.mark.parametrize(
    "step", ["color_jitter(0.4, 0.4, 0.4, 0.1)", "gaussian_blur(0.5)", "rand_augment(2, 9)"]
)
def test_an_operation_that_the_graph_cannot_do_is_named(config, step):
    with pytest.raises(UserError, match=rf"operation '{step.split('(')[0]}' .* random_crop"):
        image_text(change(config, transform=f"resize(40)|{step}"))


def test_a_filter_that_the_graph_cannot_do_is_named(config):
    with pytest.raises(UserError, match=r"resize with method='nearest' .* bicubic"):
        image_text(change(config, transform="resize(40, method='nearest')"))


def spoil(number: int, data: bytes) -> bytes:
    """Breaks every seventh picture: cut off, no image, or tables that only a decoder sees."""
    if number % 7:
        return data
    if number % 3 == 0:
        return data[: len(data) * 2 // 3]
    if number % 3 == 1:
        return b"no image at all"
    tables = data.find(b"\xff\xc4")  # Huffman's; a PNG has none and loses its head
    return data[: tables + 5] + bytes([255] * 16) + data[tables + 21 :]


@pytest.mark.slow
def test_broken_images_are_counted_named_and_replaced_as_in_the_loader(tmp_path, config, caplog):
    source = write_pictures(tmp_path, spoil=spoil)
    config = change(config, source=source, max_broken_fraction=0.5)
    dataset = image_text(config)
    steps = 11  # two epochs
    with caplog.at_level(logging.WARNING, logger="absl"):
        got = take(dataset, steps)
    named = {record.args[0] for record in caplog.records if "skipped" in record.getMessage()}
    caplog.clear()
    with build.build_train_loader(config, build.make_tokenizer(config)) as loader:
        batches = loader.iterate(0)
        with caplog.at_level(logging.WARNING, logger="absl"):
            wanted = [next(batches) for _ in range(steps)]
        assert facts_of(dataset).broken() == loader.broken == 10
    for one, other in zip(got, wanted, strict=True):
        assert_close(one, other)
    assert named == {
        record.args[0] for record in caplog.records if "skipped" in record.getMessage()
    }
    assert len(named) == 10


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shards", "caption", "transform"),
    [
        ("flickr8k/train-00000.tar", "json.captions", "random_resized_crop(112)|flip_horizontal"),
        ("flickr8k/train-00000.tar", "txt", "resize(346)|random_crop(289)|flip_horizontal"),
        ("grocery/train-*.tar", "", "resize_small(96)|random_crop(64)"),
        ("tiny_imagenet/train-*.tar", "", "random_resized_crop(48, method='bilinear')"),
        ("twemoji/train-*.tar", "txt", "random_resized_crop(48)|flip_horizontal"),
    ],
)
def test_real_photographs_differ_by_less_than_half_a_level(data_dir, shards, caption, transform):
    data = {
        "source": {"name": "tar", "path": f"{data_dir}/{shards}", "caption": caption},
        "transform": transform,
        "captions_per_image": 1 if caption else 0,
    }
    vocabulary = f"{data_dir}/text/bert-base-uncased-vocab.txt"
    config = {
        "seed": 0,
        "batch_size": 200,
        "data": data,
        "tokenizer": {"name": "wordpiece", "vocabulary": vocabulary, "length": 24},
    }
    for got, wanted in zip(
        take(image_text(config, 2), 2), loader_batches(config, 2, 2), strict=True
    ):
        assert_close(got, wanted)


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
