"""Small inputs of every kind of source, how they are read, and faults that must be noticed."""

import csv
import hashlib
import io
import json
import os
import pathlib
import random
import struct
import tarfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from samples import encode_image, make_pixels, write_tar

from big_align.config.components.signatures import make_named
from big_align.config.components.tables import SOURCES
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.loading.extra_fields import ExtraFields
from big_align.data.loading.image_pipeline import ImagePipeline
from big_align.data.loading.loader import TrainLoader
from big_align.data.loading.rows import RowStream
from big_align.data.loading.stream import ExampleStream
from big_align.data.loading.text_samplers import CaptionSampler
from big_align.data.precomputed.joins import open_joins

Path, Random = pathlib.Path, random.Random
Spoil = Callable[[Path, Random], None]
SIZE = 6
VICTIM = 2
"""Examples of every kind, and the one that faults strike."""


def vary(write: Callable[..., None], changes: Sequence[dict[str, Any]]) -> list[Spoil]:
    return [lambda folder, rng, c=change: write(folder, **c) for change in changes]


class Utf8Tokenizer:
    """The bytes of a text; like tokenizers in C++ it takes no text that UTF-8 cannot hold."""

    length, vocab_size, fingerprint = 8, 256, "utf-8"

    def __call__(self, texts):
        ids = np.zeros((len(texts), self.length), np.int32)
        for row, text in zip(ids, texts, strict=True):
            data = text.encode()[: self.length]
            row[: len(data)] = list(data)
        return ids, ids > 0


def read_examples(joins=None, **node: Any) -> tuple[list, int]:
    """Reads every example as training and as evaluation do."""
    node = {"name": None} | node
    source = node["source"] if "source" in node else make_named(SOURCES, node, "config.data.source")
    with EvalLoader(source, "resize(4)", 4, max_broken_fraction=1.0, num_threads=1) as loader:
        captions, labels = loader.captions(), loader.label_sets()
        images = list(loader.images())
        pixels = np.concatenate([batch["image"] for batch in images])[: len(captions)]
        mask = np.concatenate([batch["mask"] for batch in images])[: len(captions)]
        broken = loader.broken
    size = len(captions)
    stream = ExampleStream(source, 1, max_broken_fraction=1.0)
    rows = RowStream(
        stream, CaptionSampler(Utf8Tokenizer()), ImagePipeline("resize(4)"),
        ExtraFields(open_joins(joins or {}, source)),
    )  # fmt: skip
    with TrainLoader(rows, num_threads=1, prefetch=1) as loader:
        batches = [loader.batch(step) for step in range(size)]
        broken = max(broken, loader.broken)
    trained = sorted({digest(*(batch[name] for name in sorted(batch))) for batch in batches})
    names = [source.name(*place) for place in _places(source)]
    found = zip(names, captions, labels, pixels, mask.tolist(), strict=True)
    return [[n, c, list(x), digest(p)] for n, c, x, p, m in found if m] + trained, broken


def _places(source):
    return [(s, i) for s, size in enumerate(source.shard_sizes.tolist()) for i in range(size)]


def digest(*arrays: np.ndarray) -> str:
    return hashlib.sha1(b"".join(array.tobytes() for array in arrays)).hexdigest()[:12]


def facts(number: int) -> dict[str, Any]:
    return {"caption": f"number {number}", "label": number % 3, "other": "x"}


# What stands in JSON in place of a label or a caption, and is none.
LABELS = (
    "2.9", "-0.5", "true", '"1_0"', "1e999", "9" * 5000, "-3", '"x"', '{"a": 1}', "[1, 2.5]", "NaN",
    '"\\u0663"', "4294967297", "[[1]]", '"2.0"',
)  # fmt: skip
CAPTIONS = (
    '""', "7.5", "null", '{"en": "a"}', "[1.5]", '"\\ud800"', "[]", '[["a"]]', '"a" "b"', '["a"',
)  # fmt: skip
DEEP = "[" * 100_000 + "]" * 100_000


def tar_members(label: str = "", caption: str = "", other: str = "") -> list[tuple[str, bytes]]:
    members = []
    for number in range(SIZE):
        told = {name: json.dumps(value) for name, value in facts(number).items()}
        if number == VICTIM:
            given = {"label": label, "caption": caption, "other": other}
            told |= {name: text for name, text in given.items() if text}
        text = "{" + ", ".join(f'"{name}": {text}' for name, text in told.items()) + "}"
        members.append((f"{number:04d}.png", encode_image(make_pixels(number))))
        members.append((f"{number:04d}.json", text.encode()))
    return members


def write_members(**changes: str) -> Callable[..., None]:
    return lambda folder, rng=None: write_tar(folder / "x.tar", tar_members(**changes)) and None


def read_tar(folder: Path) -> tuple[Any, int]:
    path = f"{folder}/x.tar"
    return read_examples(name="tar", path=path, caption="json.caption", label="json.label")


def repeat_member(folder: Path, rng: Random) -> None:
    members = tar_members()
    again = rng.choice(members)
    members.insert(rng.randrange(len(members)), (again[0], again[1] + b" "))
    write_tar(folder / "x.tar", members)


def write_pax(folder: Path, name: str, records: bytes) -> None:
    """Puts a PAX header with any records before a member."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for member, data in tar_members():
            if member == name:
                header = tarfile.TarInfo("pax")
                header.type, header.size = tarfile.XHDTYPE, len(records)
                tar.addfile(header, io.BytesIO(records))
            info = tarfile.TarInfo(member)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    (folder / "x.tar").write_bytes(file.getvalue())


def replace_member(kind: bytes, target: str) -> Spoil:
    """Puts a link or a device in place of an image."""

    def spoil(folder: Path, rng: Random) -> None:
        with tarfile.open(folder / "x.tar", "w") as tar:
            for member, data in tar_members():
                info = tarfile.TarInfo(member)
                info.size = len(data)
                if member == f"{VICTIM:04d}.png":
                    info.type, info.linkname, info.size = kind, target, 0
                tar.addfile(info, io.BytesIO(data))

    return spoil


SPECIAL = (
    (tarfile.LNKTYPE, "/etc/passwd"), (tarfile.SYMTYPE, "../x.png"), (tarfile.CHRTYPE, ""),
    (tarfile.SYMTYPE, "0002.png"), (tarfile.SYMTYPE, "0001.json"), (tarfile.FIFOTYPE, ""),
)  # fmt: skip
PAX = (b"0 path=x\n", b"-5 path=x\n", b"x path=y\n", b"12", b"\xff" * 30, b"99 path=x\n")
PAX_SIZES = (b"14 size=-9999\n", b"11 size=x\n", b"20 size=" + b"9" * 11 + b"\n")


TAR_FAULTS: list[Spoil] = [
    *(write_members(label=text) for text in LABELS),
    *(write_members(caption=text) for text in CAPTIONS),
    write_members(other=DEEP),
    repeat_member,
    *(replace_member(*each) for each in SPECIAL),
    *(lambda folder, rng, x=x: write_pax(folder, "0002.png", x) for x in PAX),
    *(lambda folder, rng, x=x: write_pax(folder, "0003.json", x) for x in PAX_SIZES),
]


def write_csv(folder: Path, rng: Any = None, **changes: str) -> None:
    lines = []
    for number in range(SIZE):
        (folder / f"{number}.png").write_bytes(encode_image(make_pixels(number)))
        row = {"image": f"{number}.png", **facts(number)}
        lines.append(row | (changes if number == VICTIM else {}))
    os.makedirs(folder / "folder.png", exist_ok=True)
    if not os.path.lexists(folder / "loop.png"):
        os.symlink("loop.png", folder / "loop.png")
        os.symlink("/dev/zero", folder / "zero.png")
        os.mkfifo(folder / "fifo.png")
    with open(folder / "x.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


def read_csv(folder: Path) -> tuple[Any, int]:
    return read_examples(name="csv", path=f"{folder}/x.csv", caption="caption", label="label")


PATHS = (
    "", "folder.png", "a\0b.png", "1.png\0", "x" * 5000, "x/" * 3000, "loop.png", "zero.png",
    "fifo.png", "../" * 2000, "x" * 140_000, "nothing.png", "http://[", "s3://", "x.csv",
)  # fmt: skip


CSV_FAULTS = [
    *vary(write_csv, [{"image": path} for path in PATHS]),
    *vary(write_csv, [{"label": x} for x in ("2.9", "-0.5", "true", "1_0", "9" * 5000, "-3")]),
    *vary(write_csv, [{"caption": x} for x in ("", "  ", "x" * 140_000)]),
]


def masked_crc(data: bytes) -> bytes:
    """As TFRecord has it; bit by bit, so that nothing is shared with the code under test."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def frame_record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + masked_crc(length) + data + masked_crc(data)


def field(number: int, data: bytes) -> bytes:
    """A field of a protocol buffer that holds bytes or another message."""
    size = len(data)
    length = [size] if size < 128 else [size % 128 + 128, size // 128]
    return bytes([number << 3 | 2, *length]) + data


def make_record(number: int) -> bytes:
    """A tf.train.Example."""
    told = facts(number)
    features = {
        b"image": field(1, field(1, encode_image(make_pixels(number)))),
        b"caption": field(1, field(1, told["caption"].encode())),
        b"label": field(3, field(1, bytes([told["label"]]))),
    }
    entries = (field(1, key) + field(2, feature) for key, feature in features.items())
    return field(1, b"".join(field(1, entry) for entry in entries))


def write_records(folder: Path) -> None:
    records = [frame_record(make_record(number)) for number in range(SIZE)]
    (folder / "x.tfrecord").write_bytes(b"".join(records))


def read_records(folder: Path) -> tuple[Any, int]:
    return read_examples(name="tfrecord", path=f"{folder}/x.tfrecord", label="label")


def add_zeros(folder: Path, rng: Random) -> None:
    with open(folder / "x.tfrecord", "ab") as file:
        file.truncate(file.tell() + rng.choice((16, 1 << 12, 1 << 30)))


def change_caption(folder: Path, rng: Random) -> None:
    data = (folder / "x.tfrecord").read_bytes()
    (folder / "x.tfrecord").write_bytes(data.replace(b"number 2", b"number 7"))


RECORD_FAULTS: list[Spoil] = [add_zeros, change_caption]


def arrays() -> dict[str, np.ndarray]:
    told = [facts(number) for number in range(SIZE)]
    image = np.stack([make_pixels(number) for number in range(SIZE)])
    return {
        "image": image,
        "caption": np.array([each["caption"] for each in told]),
        "label": np.array([each["label"] for each in told]),
    }


def write_npz(folder: Path, rng: Any = None, **changes: Any) -> None:
    np.savez(folder / "x.npz", **{**arrays(), **changes})


def read_npz(folder: Path) -> tuple[Any, int]:
    return read_examples(name="npz", path=f"{folder}/x.npz")


ARRAYS = (
    {"label": np.array([0, 1, 2.7, 0, 1, 2])},
    {"label": np.array([0, 1, -5, 0, 1, 2])},
    {"label": np.array([0, 1, 2**40, 0, 1, 2])},
    {"label": np.array([0, 1, np.nan, 0, 1, 2])},
    {"label": np.array([0, 1, np.inf, 0, 1, 2])},
    {"label": np.array([True] * SIZE)},
    {"label": np.array(["0"] * SIZE)},
    {"label": np.array(3)},
    {"label": np.zeros((SIZE, 1, 1), int)},
    {"caption": np.array([1] * SIZE)},
    {"caption": np.array([b"a"] * SIZE)},
    {"caption": np.array([{}] * SIZE)},
    {"caption": np.array(["\ud800"] * SIZE)},
    {"caption": np.array("a")},
    {"caption": np.full(SIZE, 0x7FFFFFFF, "<u4").view("<U1")},
    {"caption": np.full(SIZE, 0x110000, ">u4").view(">U1")},
    {"caption": np.zeros(SIZE, "V0")},
    {"image": np.zeros((SIZE, 8, 8, 3), np.float32)},
    {"image": np.zeros((SIZE, 8, 8, 4), np.uint8)},
    {"image": np.zeros((SIZE, 8, 8), np.uint8)},
    {"image": np.zeros((SIZE, 0, 8, 3), np.uint8)},
    {"image": np.array(1)},
    {"class_names": np.array([1, 2, 3])},
    {"class_names": np.array("a")},
)


def write_bomb(folder: Path, rng: Random) -> None:
    """Writes 500 MB of captions in half a megabyte."""
    np.savez_compressed(folder / "x.npz", **{**arrays(), "caption": np.zeros(2**27, "U1")})


ARRAY_FAULTS = [*vary(write_npz, ARRAYS), write_bomb]
