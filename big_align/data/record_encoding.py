"""Examples as records: tf.train.Example messages in TFRecord and ArrayRecord files."""

import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from big_align.core.errors import UserError
from big_align.core.tf_records import encode_record
from big_align.data import tensorflow_on_cpu


def encode_example(features: Mapping[str, Sequence[bytes] | Sequence[int]]) -> bytes:
    """Returns a tf.train.Example, the same bytes for the same features; empty ones are left out."""
    train = tensorflow_on_cpu.load().train
    made = {}
    for name, values in features.items():
        if values and isinstance(values[0], bytes):
            made[name] = train.Feature(bytes_list=train.BytesList(value=values))
        elif values:
            made[name] = train.Feature(int64_list=train.Int64List(value=values))
    example = train.Example(features=train.Features(feature=made))
    return example.SerializeToString(deterministic=True)


def write_tfrecord(file: Any, records: Iterable[bytes]) -> None:
    """Writes records as a TFRecord file."""
    for record in records:
        file.write(encode_record(record))


def write_array_record(file: Any, records: Iterable[bytes]) -> None:
    """Writes records as an ArrayRecord file, in which each record can be read by itself."""
    module = import_array_record()
    with tempfile.NamedTemporaryFile(suffix=".array_record") as made:  # its writer takes a path
        writer = module.ArrayRecordWriter(made.name, "group_size:1")
        for record in records:
            writer.write(record)
        writer.close()
        with open(made.name, "rb") as whole:
            shutil.copyfileobj(whole, file, 2**24)


def import_array_record() -> Any:
    """Imports the module that writes ArrayRecord files; raises UserError if it is missing."""
    try:
        from array_record.python import array_record_module
    except ImportError as error:
        raise UserError(
            "ArrayRecord files are written by array_record, which is not installed: pip install "
            "array_record"
        ) from error
    return array_record_module
