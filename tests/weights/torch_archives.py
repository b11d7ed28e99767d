"""Writes files as torch.save does, without torch: a pickle assembled by hand and its storages."""

import pickle
import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

STORAGES = {
    "float64": "DoubleStorage",
    "float32": "FloatStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "int64": "LongStorage",
    "int32": "IntStorage",
    "int16": "ShortStorage",
    "int8": "CharStorage",
    "uint8": "ByteStorage",
    "bool": "BoolStorage",
}


class Named(NamedTuple):
    """Something that the pickle asks for by name."""

    module: str
    name: str


class Call(NamedTuple):
    """What a named function returns, optionally with attributes set on it."""

    function: Named
    arguments: tuple = ()
    attributes: Any = None


class Stored(NamedTuple):
    """A storage of the file; `view` says of which part of another it is, as old files do."""

    kind: str
    key: str
    count: int
    view: tuple = ()


ORDERED = Named("collections", "OrderedDict")
REBUILD = Named("torch._utils", "_rebuild_tensor_v2")


def tensor(
    key: str,
    dtype: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    offset: int = 0,
    more: tuple = (),
) -> Call:
    """Describes a tensor in the storage `key`; rows lie one after another without `strides`."""
    strides = np.empty(shape, np.uint8).strides if strides is None else strides
    storage = Stored(STORAGES[dtype], key, 0)
    return Call(REBUILD, (storage, offset, shape, strides, False, Call(ORDERED), *more))


def encode(tree: Any) -> bytes:
    """Returns the opcodes that make a tree."""
    match tree:
        case Named(module, name):
            return f"c{module}\n{name}\n".encode()
        case Call(function, arguments, attributes):
            made = encode(function) + encode(arguments) + b"R"
            return made if attributes is None else made + encode(attributes) + b"b"
        case Stored(kind, key, count, view):
            named = Named(*("torch." + kind).rsplit(".", 1))
            return encode(("storage", named, key, "cpu", count, *view)) + b"Q"
        case tuple():
            return b"(" + b"".join(map(encode, tree)) + b"t"
        case dict():
            pairs = (encode(key) + encode(value) for key, value in tree.items())
            return b"}(" + b"".join(pairs) + b"u"
        case _:
            return pickle.dumps(tree, protocol=2)[2:-1]  # without the first and the last opcode


def write_archive(
    path: Any, tree: Any, storages: Mapping[str, np.ndarray], byte_order: str = "little"
) -> None:
    """Writes a file of torch.save.

    Args:
      path: the file.
      tree: what was saved, or the bytes of its pickle.
      storages: elements by key.
      byte_order: that of the machine that saved.
    """
    program = tree if isinstance(tree, bytes) else b"\x80\x02" + encode(tree) + b"."
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weights/data.pkl", program)
        archive.writestr("weights/byteorder", byte_order)
        for key, array in storages.items():
            archive.writestr(f"weights/data/{key}", array.tobytes())


def write_stream(
    path: Any,
    tree: Any,
    storages: Mapping[str, np.ndarray],
    byte_order: str = "little",
    version: int = 1001,
) -> None:
    """Writes a file as torch did before version 1.6; the arguments are those of `write_archive`."""
    magic = 0x1950A86A20F9469CFC6C
    system = {"protocol_version": version, "little_endian": byte_order == "little"}
    program = tree if isinstance(tree, bytes) else b"\x80\x02" + encode(tree) + b"."
    pickles = [pickle.dumps(x, protocol=2) for x in (magic, version, system)]
    with open(path, "wb") as file:
        file.write(b"".join([*pickles, program, pickle.dumps(list(storages), protocol=2)]))
        for array in storages.values():
            file.write(array.size.to_bytes(8, "little") + array.tobytes())
