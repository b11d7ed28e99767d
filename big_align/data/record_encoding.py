"""Examples as records: tf.train.Example messages in TFRecord and ArrayRecord files."""

import importlib
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from big_align.core.errors import UserError
from big_align.core.tf_records import encode_record

_VALUES = (("bytes", "BytesList"), ("float", "FloatList"), ("int64", "Int64List"))


def _make_class() -> Any:
    """Returns the class of the message as protobuf makes it, of a pool of its own."""
    lists = [
        {"name": name, "field": [_field("value", 1, f"TYPE_{kind.upper()}", repeated=True)]}
        for kind, name in _VALUES
    ]
    kinds = [
        _field(f"{kind}_list", number, "TYPE_MESSAGE", name) | {"oneofIndex": 0}
        for number, (kind, name) in enumerate(_VALUES, start=1)
    ]
    entry = {
        "name": "FeatureEntry",
        "field": [_field("key", 1, "TYPE_STRING"), _field("value", 2, "TYPE_MESSAGE", "Feature")],
        "options": {"mapEntry": True},
    }
    features = _field("feature", 1, "TYPE_MESSAGE", "Features.FeatureEntry", repeated=True)
    file = {
        "name": "example.proto",
        "syntax": "proto3",
        "messageType": [
            *lists,
            {"name": "Feature", "field": kinds, "oneofDecl": [{"name": "kind"}]},
            {"name": "Features", "field": [features], "nestedType": [entry]},
            {"name": "Example", "field": [_field("features", 1, "TYPE_MESSAGE", "Features")]},
        ],
    }
    pool = descriptor_pool.DescriptorPool()
    pool.Add(json_format.ParseDict(file, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Example"))


def _field(
    name: str, number: int, kind: str, message: str = "", repeated: bool = False
) -> dict[str, Any]:
    label = "LABEL_REPEATED" if repeated else "LABEL_OPTIONAL"
    field = {"name": name, "number": number, "type": kind, "label": label}
    return field | ({"typeName": f".{message}"} if message else {})


Example = _make_class()
"""Has the fields of tf.train.Example, and the same bytes."""


def encode_example(features: Mapping[str, Sequence[bytes] | Sequence[int]]) -> bytes:
    """Returns a tf.train.Example, the same bytes for the same features; empty ones are left out."""
    example = Example()
    for name, values in features.items():
        if values:
            feature = example.features.feature[name]
            kind = feature.bytes_list if isinstance(values[0], bytes) else feature.int64_list
            kind.value.extend(values)
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


def import_array_record(module: str = "array_record_module") -> Any:
    """Imports a module that reads or writes ArrayRecord files; UserError if it is missing."""
    try:
        return importlib.import_module(f"array_record.python.{module}")
    except ImportError as error:
        raise UserError(
            "ArrayRecord files are written and read by array_record, which is not installed: pip "
            "install array_record"
        ) from error
