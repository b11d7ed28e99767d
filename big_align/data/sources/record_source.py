"""TFRecord files and prepared TensorFlow data sets, read at random."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import logging

from big_align.core.regular_files import MEMBER_MAX
from big_align.core.tf_records import CHECKSUM, LENGTH, mask_checksum
from big_align.data import columns, examples, files, listing, tensorflow_on_cpu
from big_align.data.record_encoding import Example, import_array_record
from big_align.data.sources import shard_index


class RecordSource:
    """Examples that are serialized tf.train.Example messages, with features as in `TFRecordSource`.

    Shards are sequences of messages, `len(shard)` and `shard[index]`, read from any thread.
    `broken` counts the records known to be lost.
    """

    class_names: tuple[str, ...] | None = None

    def __init__(
        self,
        shards: list[Any],
        names: list[str],
        broken: np.ndarray,
        image: str = "image",
        caption: str | None = "caption",
        label: str | None = None,
    ):
        self._shards = shards
        self._names = names
        self._firsts = [getattr(shard, "skip", 0) for shard in shards]  # the first of a split
        self._image = image
        self._caption = caption
        self._label = label
        self.shard_sizes = np.array([len(shard) for shard in shards], np.int64)
        self.broken = broken
        if not self.shard_sizes.sum():
            raise ValueError(f"no record in {', '.join(names)}")

    def read(self, shard: int, index: int) -> examples.Example:
        features = self._features(shard, index)
        captions, labels = self._texts(features)
        image = _values(features, self._image, "bytes_list")
        return examples.Example(str(self._firsts[shard] + index), image[0], captions, labels)

    def read_image(self, shard: int, index: int) -> bytes:
        return _values(self._features(shard, index), self._image, "bytes_list")[0]

    def read_text(self, shard: int, index: int) -> tuple[list[str], tuple[int, ...]]:
        return self._texts(self._features(shard, index))

    def name(self, shard: int, index: int) -> str:
        """Names an example, as in `train.tfrecord-00003-of-00008: record 42`."""
        return f"{self._names[shard]}: record {self._firsts[shard] + index}"

    def shard_name(self, shard: int) -> str:
        return self._names[shard]

    def _features(self, shard: int, index: int) -> Any:
        try:
            return _parse(self._shards[shard][index])
        except examples.BrokenExample:
            raise
        except Exception as error:
            raise examples.BrokenExample(f"the record is no tf.train.Example ({error})") from error

    def _texts(self, features: Any) -> tuple[list[str], tuple[int, ...]]:
        captions, labels = [], ()
        if self._caption:
            values = _values(features, self._caption, "bytes_list")
            texts = [examples.decode_text(value) for value in values]
            captions = examples.clean_captions(texts[0] if len(texts) == 1 else texts)
        if self._label:
            values = _values(features, self._label, "int64_list", may_be_empty=True)
            labels = examples.clean_labels(list(values))
        return captions, labels


class TFRecordSource(RecordSource):
    """Examples of TFRecord files, whose headers are scanned once, or of ArrayRecord files.

    Args:
      path: shards, ArrayRecord files with `array_record` in their names; globs, `{00000..00005}`
        and comma lists, local or any fsspec or gs:// path; or a list of them.
      image: the feature that holds the encoded image; None finds it, by its name in the first
        record: `jpg` (img2dataset's), `image`, `image/encoded`.
      caption: the feature that holds one or more texts; None finds it, "" reads none.
      label: the feature that holds the class numbers, one or several. None finds it if no
        captions are read; "" reads none.
      index_dir: a folder that keeps the scans for the next start.

    Raises:
      ValueError: nothing matches the path, or no file holds a record.
    """

    def __init__(
        self,
        path: listing.Paths,
        image: str | None = None,
        caption: str | None = None,
        label: str | None = None,
        index_dir: str | None = None,
    ):
        paths = listing.expand_paths(path, "*.tfrecord*")
        shards, broken = _open_records(paths, index_dir)
        names = [os.path.basename(path) for path in paths]
        image, caption, label = _find_features(shards, names, image, caption, label)
        super().__init__(shards, names, broken, image, caption, label)


class TFDSSource(RecordSource):
    """Examples of a prepared TensorFlow data set, stored as TFRecord or ArrayRecord.

    Args:
      dataset: its name, with a config if it has several: `coco_captions/2014`.
      split: a split or a part of it: `train`, `train[:90%]`.
      data_dir: where it was prepared; None is TFDS's own folder.
      image: the feature that holds the image, which TFDS stores encoded.
      caption: the feature that holds one or more texts, as in `captions/text`; None reads none.
      label: the feature that holds the class numbers, one or several; None reads none. If the
        data set names its classes, they are `class_names`.
      index_dir: a folder that keeps the scans for the next start.

    Raises:
      ValueError: the data set is unknown or not prepared, has no such split, or the part of it is
        empty.
    """

    def __init__(
        self,
        dataset: str,
        split: str,
        data_dir: str | None = None,
        image: str = "image",
        caption: str | None = None,
        label: str | None = None,
        index_dir: str | None = None,
    ):
        builder, parts = _open_split(dataset, split, data_dir)
        paths = [part.filename for part in parts]
        shards, broken = _open_records(paths, index_dir)
        shards = [
            _Part(shard, part.skip, part.take) for shard, part in zip(shards, parts, strict=True)
        ]
        names = [os.path.basename(path) for path in paths]
        super().__init__(shards, names, broken, image, caption, label)
        self.class_names = _class_names(builder.info.features, label) if label else None


def _open_records(paths: list[str], index_dir: str | None) -> tuple[list[Any], np.ndarray]:
    """Opens files as sequences of bytes; returns also how many records each has lost, estimated."""
    if "array_record" in os.path.basename(paths[0]):
        module = import_array_record("array_record_data_source")
        return [module.ArrayRecordDataSource([path]) for path in paths], np.zeros(
            len(paths), np.int64
        )
    system = files.files_of(paths[0])
    indexes = shard_index.index_shards(paths, _index, "tfrecord", index_dir)
    shards = [_Records(system, *pair) for pair in zip(paths, indexes, strict=True)]
    return shards, shard_index.count_broken(indexes)


class _Records:
    def __init__(self, system: files.Files, path: str, index: shard_index.ShardIndex):
        self._files, self._path, self._table = system, path, index.table

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: int) -> bytes:
        start, length = self._table[index].tolist()
        if length > MEMBER_MAX:
            raise examples.BrokenExample(
                f"the record has {length} bytes; at most {MEMBER_MAX} are read"
            )
        data = self._files.read(self._path, start, length + CHECKSUM)
        if len(data) != length + CHECKSUM:
            raise examples.BrokenExample("the file has become shorter than its index says")
        record = data[:length]
        if mask_checksum(record) != data[length:]:
            raise examples.BrokenExample(
                f"the record at byte {start} does not have its checksum: it has changed on disk"
            )
        return record


class _Part:
    """A stretch of a sequence: a split may take only some records of a file."""

    def __init__(self, records: Any, skip: int, take: int):
        self._records, self.skip = records, skip
        rest = max(0, len(records) - skip)
        self._size = rest if take < 0 else min(take, rest)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> bytes:
        return self._records[self.skip + index]


def _find_features(
    shards: list[Any], names: list[str], image: str | None, caption: str | None, label: str | None
) -> tuple[str, str | None, str | None]:
    """Returns the features of image, captions and labels; those not set are found by name.

    Those that are set are left as they are: a record that lacks one is a broken example.
    """
    first = next((n for n, shard in enumerate(shards) if len(shard)), None)
    try:
        features = _parse(shards[first][0]) if first is not None else {}
    except Exception:  # not an Example, which reading it reports
        features = {}
    if not features:
        return image or "image", caption, label
    where = f"the first record of {names[first]}"
    there = {*features, *filter(None, (image, caption, label))}
    image = columns.choose_image(image, sorted(there), columns.IMAGES, where)
    caption, label = columns.choose_texts(caption, label, sorted(there), where)
    found = columns.describe(image=image, caption=caption, label=label)
    logging.info("%s: %s", where, found)
    return image, caption, label


def _parse(record: bytes) -> Any:
    """Returns the features of a record."""
    return Example.FromString(record).features.feature


def _values(features: Any, name: str, kind: str, may_be_empty: bool = False) -> Any:
    """Returns the values of a feature; raises BrokenExample if it has none of this kind."""
    if name not in features:
        raise examples.BrokenExample(f"no feature {name!r} (it has {', '.join(sorted(features))})")
    values = getattr(features[name], kind).value
    if not values and not (may_be_empty and features[name].HasField(kind)):
        raise examples.BrokenExample(f"the feature {name!r} is empty or no {kind}")
    return values


def _index(file: Any, size: int) -> shard_index.ShardIndex:
    rows, fault = [], ""
    for start, length, fault in scan_records(file, size):
        if not fault:
            rows.append((start, length))
    table = np.array(rows, np.uint64).reshape(-1, 2)
    return shard_index.ShardIndex(table, np.array([], "S1"), 0, fault)


def scan_records(file: Any, size: int) -> Iterator[tuple[int, int, str]]:
    """Yields the offset and size in bytes of each record, and at the end why it stops too early."""
    position = 0
    while position < size:
        file.seek(position)
        start = position + LENGTH + CHECKSUM
        header = file.read(LENGTH + CHECKSUM)
        field = header[:LENGTH]
        length = int.from_bytes(field, "little")
        if len(header) == LENGTH + CHECKSUM and mask_checksum(field) != header[LENGTH:]:
            packed = position == 0 and header[:2] in (b"\x1f\x8b", b"\x78\x9c")
            told = "it is compressed, which cannot be read at random; unpack it"
            fault = f"the length at byte {position} does not have its checksum"
            yield 0, 0, told if packed else fault
            return
        if start + length + CHECKSUM > size:
            yield 0, 0, f"the record at byte {position} goes on beyond the end of the file"
            return
        yield start, length, ""
        position = start + length + CHECKSUM


def _open_split(dataset: str, split: str, data_dir: str | None) -> tuple[Any, list[Any]]:
    """Returns the data set, and the files of a split with the records that belong to it."""
    instead = "read its files with the source 'tfrecord', which needs neither"
    tfds = tensorflow_on_cpu.load("a TFDS data set", instead, "tensorflow_datasets")
    try:
        builder = tfds.builder(dataset, data_dir=data_dir, try_gcs=False)
        known = builder.info.splits
        parts = known[split].file_instructions if known else []
    except (tfds.core.registered.DatasetNotFoundError, ValueError, KeyError) as error:
        raise ValueError(f"TFDS data set {dataset!r}, split {split!r}: {error}") from error
    if known and not parts:
        counts = ", ".join(f"{name} has {each.num_examples}" for name, each in known.items())
        raise ValueError(f"TFDS data set {dataset!r}, split {split!r} has no examples: {counts}")
    if not parts:
        raise ValueError(
            f"TFDS data set {dataset!r} is not prepared in {builder.data_dir}: run `tfds build "
            f"{dataset}` or set data_dir to the folder where it is"
        )
    return builder, parts


def _class_names(features: Any, label: str) -> tuple[str, ...] | None:
    """Returns the names that TFDS gives the classes of a feature; None if it only numbers them."""
    names = getattr(features[label], "names", None) if label in features else None
    numbers = [str(number) for number in range(len(names or ()))]  # TFDS's answer without names
    return tuple(names) if names and list(names) != numbers else None
