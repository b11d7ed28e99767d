import numpy as np
import pytest
from samples import encode_image, make_pixels

from big_align.data.examples import BrokenExample
from big_align.data.sources import record_source
from big_align.data.sources.record_source import TFDSSource, TFRecordSource

tf = pytest.importorskip("tensorflow")
tfds = pytest.importorskip("tensorflow_datasets")


def feature(*values):
    if isinstance(values[0], int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def make_record(number: int) -> bytes:
    features = {
        "image": feature(encode_image(make_pixels(number))),
        "caption": feature(b"number %d" % number, b"n %d" % number),
        "label": feature(number % 10),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


@pytest.fixture
def records(tmp_path) -> str:
    """Three files of 5, 3 and 4 records, numbered through."""
    first = 0
    for shard, size in enumerate((5, 3, 4)):
        with tf.io.TFRecordWriter(str(tmp_path / f"x.tfrecord-{shard:05d}-of-00003")) as writer:
            for number in range(first, first + size):
                writer.write(make_record(number))
        first += size
    return str(tmp_path / "x.tfrecord-*-of-00003")


def read_all(source):
    return [
        source.read(shard, index)
        for shard, size in enumerate(source.shard_sizes)
        for index in range(size)
    ]


def test_random_access_equals_a_sequential_read(records, tmp_path):
    source = TFRecordSource(records, label="label", index_dir=str(tmp_path / "index"))
    assert source.shard_sizes.tolist() == [5, 3, 4]
    paths = sorted(tf.io.gfile.glob(records))
    sequential = list(tf.data.TFRecordDataset(paths).as_numpy_iterator())
    table = [shard[i] for shard in source._shards for i in range(len(shard))]
    assert table == sequential
    for number, example in enumerate(read_all(source)):
        assert example.image == encode_image(make_pixels(number))
        assert example.captions == [f"number {number}", f"n {number}"]
        assert example.label == number % 10
    assert source.read(1, 2) == read_all(source)[7]
    assert source.read_text(2, 0) == (["number 8", "n 8"], (8,))
    assert source.name(1, 2) == "x.tfrecord-00001-of-00003: record 2"
    again = TFRecordSource(records, label="label", index_dir=str(tmp_path / "index"))
    assert read_all(again) == read_all(source)


def test_a_truncated_file_gives_the_records_before(records, tmp_path):
    path = tmp_path / "x.tfrecord-00001-of-00003"
    path.write_bytes(path.read_bytes()[:-20])
    source = TFRecordSource(records)
    assert source.shard_sizes.tolist() == [5, 2, 4]
    assert source.broken.tolist() == [0, 2, 0]  # the whole files hold 4.5 records in the median


def test_wrong_features_are_explained(records, tmp_path):
    for choice, message in (
        ({"caption": "text"}, r"no feature 'text' \(it has caption, image, label\)"),
        ({"caption": "label"}, "'label' is empty or no bytes_list"),
        ({"image": "picture"}, "no feature 'picture'"),
        ({"label": "caption"}, "'caption' is empty or no int64_list"),
    ):
        with pytest.raises(BrokenExample, match=message):
            TFRecordSource(records, **choice).read(0, 0)
    with tf.io.TFRecordWriter(str(tmp_path / "y.tfrecord")) as writer:
        writer.write(b"no example")
    with pytest.raises(BrokenExample, match="no tf.train.Example"):
        TFRecordSource(str(tmp_path / "y.tfrecord")).read(0, 0)
    (tmp_path / "z.tfrecord").write_bytes(b"")
    with pytest.raises(ValueError, match="no record in z.tfrecord"):
        TFRecordSource(str(tmp_path / "z.tfrecord"))


class Numbers(tfds.core.GeneratorBasedBuilder):
    """Ten examples."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(8, 8, 3), encoding_format="png"),
            "captions": tfds.features.Sequence({"text": tfds.features.Text()}),
            "label": tfds.features.ClassLabel(num_classes=10),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for n in range(10):
            captions = {"text": [f"number {n}", f"n {n}"]}
            yield n, {"image": make_pixels(n), "captions": captions, "label": n}


@pytest.fixture(params=["tfrecord", "array_record"])
def prepared(tmp_path, request):
    """The data set in two files of the format."""
    builder = Numbers(data_dir=tmp_path, file_format=request.param)
    builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(num_shards=2, try_download_gcs=False)
    )
    return builder


CHOICE = {"caption": "captions/text", "label": "label"}


def test_examples_equal_those_of_tfds(prepared, tmp_path):
    source = TFDSSource("numbers", "train", str(tmp_path), **CHOICE)
    assert source.shard_sizes.tolist() == [5, 5]
    decoders = {"image": tfds.decode.SkipDecoding()}
    if "array_record" in source.shard_name(0):
        wanted = prepared.as_data_source(split="train", decoders=decoders)
    else:
        wanted = tfds.as_numpy(prepared.as_dataset(split="train", decoders=decoders))
    for example, other in zip(read_all(source), wanted, strict=True):
        assert example.image == other["image"]
        assert example.captions == [text.decode() for text in other["captions"]["text"]]
        assert example.label == other["label"]
    assert source.class_names is None  # TFDS only numbers them


def test_tfds_names_the_classes_of_its_labels():
    label = tfds.features.ClassLabel(names=["cat", "dog"])
    numbered = tfds.features.ClassLabel(num_classes=2)
    features = tfds.features.FeaturesDict({"label": label, "number": numbered, "size": np.int64})
    assert record_source._class_names(features, "label") == ("cat", "dog")
    for other in ("number", "size", "kind"):
        assert record_source._class_names(features, other) is None


def test_tfds_names_the_classes_of_several_labels():
    """As VOC's: `labels` is a sequence of classes."""
    labels = tfds.features.Sequence(tfds.features.ClassLabel(names=["cat", "dog"]))
    features = tfds.features.FeaturesDict({"labels": labels})
    assert record_source._class_names(features, "labels") == ("cat", "dog")


def test_a_feature_of_several_integers_is_several_labels(tmp_path):
    path = str(tmp_path / "x.tfrecord")
    stored = [feature(14, 6, 14), feature(3), tf.train.Feature(int64_list={"value": []})]
    stored += [tf.train.Feature(), feature(b"cat"), feature(-2)]
    with tf.io.TFRecordWriter(path) as writer:
        for number, labels in enumerate(stored):
            features = {"image": feature(encode_image(make_pixels(number))), "labels": labels}
            record = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(record.SerializeToString())
    source = TFRecordSource(path, caption=None, label="labels")
    assert [source.read(0, n).labels for n in range(3)] == [(14, 6), (3,), ()]
    for number, message in ((3, "is empty or no int64"), (4, "is empty or no int64"), (5, "is -2")):
        with pytest.raises(BrokenExample, match=message):
            source.read_text(0, number)


def test_tfds_takes_parts_of_splits(prepared, tmp_path):
    whole = read_all(TFDSSource("numbers", "train", str(tmp_path), **CHOICE))
    part = read_all(TFDSSource("numbers", "train[30%:80%]", str(tmp_path), **CHOICE))
    assert [e.label for e in part] == [e.label for e in whole[3:8]]


def test_tfds_errors_say_what_to_do(tmp_path, prepared):
    with pytest.raises(ValueError, match="nothing_of_the_kind"):
        TFDSSource("nothing_of_the_kind", "train", str(tmp_path))
    with pytest.raises(ValueError, match="split 'test'"):
        TFDSSource("numbers", "test", str(tmp_path))
    with pytest.raises(ValueError, match="tfds build mnist"):
        TFDSSource("mnist", "train", str(tmp_path))
    for part in ("train[:0]", "train[9:2]", "train[90%:90%]"):
        with pytest.raises(ValueError, match="has no examples: train has 10$"):
            TFDSSource("numbers", part, str(tmp_path))


def test_scan_ends_at_a_length_that_cannot_be(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"\xff" * 40)
    with open(path, "rb") as file:
        (found,) = record_source.scan_records(file, 40)
    assert found[2] == "the length at byte 0 does not have its checksum"
    assert np.array(found[:2]).sum() == 0
    length = (2**40).to_bytes(8, "little")
    path.write_bytes(length + record_source.mask_checksum(length) + bytes(20))
    with open(path, "rb") as file:
        (found,) = record_source.scan_records(file, 32)
    assert found[2] == "the record at byte 0 goes on beyond the end of the file"
