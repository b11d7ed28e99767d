"""Small files that would take much memory or time, or run something, if they were believed."""

import json
import pathlib
import struct
import zipfile
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tests.weights.torch_archives import (
    ORDERED,
    REBUILD,
    STORAGES,
    Call,
    Named,
    Stored,
    encode,
    tensor,
    write_archive,
    write_stream,
)

SIX = np.arange(6, dtype=np.float32)
PLAIN = {"a": tensor("0", "float32", (2, 3))}
MILLION = 10**6


class Hostile(NamedTuple):
    """A file that must be refused.

    Args:
      name: of the file.
      write: makes it.
      message: a pattern of what is said about it.
    """

    name: str
    write: Callable[[pathlib.Path], None]
    message: str


def double(times: int) -> bytes:
    """Makes a tuple of two, each of which is the same tuple of two, and so on."""
    return b")" + b"2\x86" * times


def call(function: bytes, arguments: bytes, times: int) -> bytes:
    """Keeps a function and its arguments, and calls it again and again, into a list."""
    again = b"h\x01h\x02R" * times
    return function + b"q\x010" + arguments + b"q\x020" + b"](" + again + b"e"


def in_dict(value: bytes) -> bytes:
    """A pickle of a state dict with one more value."""
    return b"\x80\x02}(" + encode("a") + encode(PLAIN["a"]) + encode("b") + value + b"u."


def shaped(shape: bytes, strides: bytes, storage: bytes | None = None) -> bytes:
    """A tensor whose shape and strides are made by opcodes."""
    storage = storage or encode(Stored(STORAGES["float32"], "0", 0))
    rest = b"\x89" + encode(Call(ORDERED))
    return encode(REBUILD) + b"(" + storage + b"K\x00" + shape + strides + rest + b"tR"


def list_of(item: bytes, count: int) -> bytes:
    return b"](" + item * count + b"e"


NUMBER = b"K\x01"
PAIR = b"U\x01kK\x01\x86"
LONG_TEXT = b"X" + struct.pack("<I", MILLION) + b"x" * MILLION
GREAT = b"\x8b" + struct.pack("<I", MILLION) + b"\x7f" * MILLION

HARMLESS = {  # what is read as if it were not there
    "a memo of 400 million places": b"Nr" + struct.pack("<I", 400 * MILLION),
    "a key that is a tree without end": b"}" + double(100) + b"Ns",
    "keys that are great numbers": b"}" + GREAT + b"q\x010" + b"h\x01Ns" * 100_000,
}

PROGRAMS = {  # what a pickle may hold beside a tensor, and what is said about it
    "4 million sets": (b"(" + b"\x8f" * (4 * MILLION) + b"t", "takes more steps"),
    "4 million dictionaries": (b"(" + b"}" * (4 * MILLION) + b"t", "takes more steps"),
    "copies of a dictionary": (
        call(encode(ORDERED), list_of(PAIR, 50_000) + b"\x85", 50_000),
        "takes more steps",
    ),
    "copies of a size": (
        call(encode(Named("torch", "Size")), list_of(NUMBER, 100_000) + b"\x85", 100_000),
        "takes more steps",
    ),
    "calls with many arguments": (
        call(encode(Named("torch", "device")), b"(" + NUMBER * 100_000 + b"t", 100_000),
        "takes more steps",
    ),
    "keys of a million characters": (
        b"}" + LONG_TEXT + b"q\x010" + LONG_TEXT + b"q\x020" + b"h\x01Nsh\x02Ns" * 50_000,
        "a name is no text of at most 1000",
    ),
    "a shape that is a tree without end": (
        shaped(double(100), b")"),
        "shape, strides and offset",
    ),
    "a shape of a million axes": (
        shaped(b"(" + b"K\x02" * MILLION + b"t", b"(" + b"K\x00" * MILLION + b"t"),
        "shape, strides and offset",
    ),
    "a shape of great numbers": (
        shaped(GREAT + b"q\x010(" + b"h\x01" * 30 + b"t", b"(" + b"K\x00" * 30 + b"t"),
        "shape, strides and offset",
    ),
    "an offset that is a tree without end": (
        encode(REBUILD)
        + b"("
        + encode(Stored(STORAGES["float32"], "0", 0))
        + double(100)
        + b"))\x89)tR",
        "shape, strides and offset",
    ),
    "metadata that is a tree without end": (
        encode(REBUILD)
        + b"("
        + encode(Stored(STORAGES["float32"], "0", 0))
        + b"K\x00))\x89)}"
        + encode("m")
        + double(100)
        + b"stR",
        "stored with m; save a clone",
    ),
    "a storage whose key is a tree without end": (
        b"(" + encode("storage") + encode(Named("torch", "FloatStorage")) + double(100) + b"NNtQ",
        "a name is no text",
    ),
    "a storage that is a tree without end": (
        b"(" + double(100) + encode(Named("torch", "FloatStorage")) + encode("0") + b"NNtQ",
        "no storage",
    ),
    "a text of 4 GB": (b"X\xff\xff\xff\xff", "is damaged"),
    "a text of 8 exabytes": (b"\x8d" + b"\xff" * 7 + b"\x7f", "is damaged"),
    "an array of 6 GB": (b"\x96" + (6 << 30).to_bytes(8, "little"), "is damaged"),
}

VIEWS = {  # state dicts whose tensors are larger than what is there
    "6 GB out of 24 bytes": ({"a": tensor("0", "float32", (40_000, 40_000), (0, 0))}, "views"),
    "rows that are one row": ({"a": tensor("0", "float32", (10**9, 6), (0, 1))}, "views"),
    "many large views": (
        {f"{n}": tensor("0", "float32", (MILLION,), (0,)) for n in range(1000)},
        "views",
    ),
    "no elements along endless axes": (
        {"a": tensor("0", "float32", (0, 2**62, 2**62), (0, 0, 0))},
        "shape, strides and offset",
    ),
    "a storage smaller than its view": (
        {"a": tensor("0", "float32", (1, 40_000, 40_000), (0, 40_000, 1))},
        "goes beyond its storage",
    ),
    "names that are no names": ({"a\nb" * 100: PLAIN["a"]}, "names an array 'a"),
}


def _archive(tree: object) -> Callable[[pathlib.Path], None]:
    return lambda path: write_archive(path, tree, {"0": SIX})


def _stream(tree: object) -> Callable[[pathlib.Path], None]:
    return lambda path: write_stream(path, tree, {"0": SIX})


def _stream_with_a_header_of_sets(path: pathlib.Path) -> None:
    write_stream(path, PLAIN, {"0": SIX})
    path.write_bytes(path.read_bytes()[:15] + b"\x80\x02" + b"\x8f" * (4 * MILLION) + b".")


def _stream_of_a_large_storage(path: pathlib.Path) -> None:
    write_stream(path, PLAIN, {"0": SIX})
    whole = path.read_bytes()
    path.write_bytes(whole[:-32] + (2**60).to_bytes(8, "little") + whole[-24:])


def _overlapping_members(path: pathlib.Path) -> None:
    """Ten thousand storages that are the same megabyte of the file."""
    tree = {f"{n}": tensor(f"{n}", "uint8", (MILLION,)) for n in range(10_000)}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weights/data.pkl", b"\x80\x02" + encode(tree) + b".")
        archive.writestr("weights/data/0", bytes(MILLION))
        first = archive.getinfo("weights/data/0")
        for number in range(1, 10_000):
            member = zipfile.ZipInfo(f"weights/data/{number}")
            member.header_offset, member.file_size = first.header_offset, first.file_size
            member.compress_size, member.CRC = first.compress_size, first.CRC
            archive.filelist.append(member)


def _compressed_pickle(path: pathlib.Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("weights/data.pkl", "w") as member:
            for _ in range(64):
                member.write(b"]" * (1 << 20))


def _compressed_storage(path: pathlib.Path) -> None:
    write_archive(path, {"a": tensor("1", "uint8", (1 << 30,))}, {})
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("weights/data/1", "w") as member:
            for _ in range(64):
                member.write(bytes(1 << 20))


def _safetensors(
    header: bytes | Callable[[], bytes], data: bytes = b""
) -> Callable[[pathlib.Path], None]:
    """Writes a header before data; one that takes seconds is made when it is written."""

    def write(path: pathlib.Path) -> None:
        made = header if isinstance(header, bytes) else header()
        path.write_bytes(len(made).to_bytes(8, "little") + made + data)

    return write


def _entry(shape: list[int], end: int) -> bytes:
    return json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}).encode()


HEADERS = {
    "a header of 95 MB that is not there": (
        lambda path: path.write_bytes((95 * MILLION).to_bytes(8, "little") + b"{"),
        "truncated",
    ),
    "a shape of two million twos": (
        _safetensors(lambda: _entry([2] * (2 * MILLION), 4)),
        "has .* values in .* bytes|describes 'a'",
    ),
    "a shape of many twos": (_safetensors(lambda: _entry([2] * 400_000, 4)), "describes 'a'"),
    "a shape of long numbers": (
        _safetensors(lambda: _entry([10**4200] * 3000, 4)),
        "describes 'a'",
    ),
    "no elements along endless axes": (
        _safetensors(_entry([0] + [2**62] * 4, 0)),
        "describes 'a'",
    ),
    "giant offsets": (_safetensors(_entry([2**40], 2**42)), "truncated"),
    "twenty million lists": (
        _safetensors(lambda: b'{"a":[' + b"[]," * (10 * MILLION) + b"0]}"),
        "values in .* bytes",
    ),
    "ten million names": (
        _safetensors(lambda: b"{" + b",".join(b'"%x":0' % n for n in range(4 * MILLION)) + b"}"),
        "values in .* bytes",
    ),
    "lists in lists": (_safetensors(b'{"a":' + b"[" * 100_000), "not JSON"),
    "a name of many lines": (
        _safetensors(json.dumps({"a\nb": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}})
                     .encode(), bytes(4)),
        "names an array 'a",
    ),
}  # fmt: skip

ARCHIVES = {
    "members that overlap": (_overlapping_members, "views"),
    "a compressed pickle": (_compressed_pickle, "compressed"),
    "a compressed storage": (_compressed_storage, "compressed"),
}
STREAMS = {
    "a header of sets": (_stream_with_a_header_of_sets, "takes more steps"),
    "a storage beyond the file": (_stream_of_a_large_storage, "beyond the end of the file"),
}


def list_harmless() -> dict[str, Callable[[pathlib.Path], None]]:
    """Returns what writes the files of `HARMLESS`, by what they are."""
    kinds = (("archive", _archive), ("stream", _stream))
    values = HARMLESS.items()
    return {f"{what}, {kind}": write(in_dict(v)) for what, v in values for kind, write in kinds}


def list_files() -> dict[str, Hostile]:
    """Returns all files by what they are; what pickles hold is in archives and in streams."""
    files = {}
    for what, (value, message) in PROGRAMS.items():
        for kind, write in (("archive", _archive), ("stream", _stream)):
            suffix = "pt" if kind == "archive" else "pth"
            hostile = Hostile(f"weights.{suffix}", write(in_dict(value)), message)
            files[f"{what}, {kind}"] = hostile
    for what, (tree, message) in VIEWS.items():
        files[f"{what}, archive"] = Hostile("weights.pt", _archive(tree), message)
        files[f"{what}, stream"] = Hostile("weights.pth", _stream(tree), message)
    for suffix, table in (("pt", ARCHIVES), ("pth", STREAMS), ("safetensors", HEADERS)):
        files |= {what: Hostile(f"weights.{suffix}", *pair) for what, pair in table.items()}
    return files
