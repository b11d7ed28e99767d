"""Kinds of input that a user may hand over, and what can be wrong with them.

A kind is a line of `KINDS`: how a small intact one is written, how all of it is read as training
and evaluation would, and faults that must not go unnoticed. Bytes are mutated alike for all.
"""

import contextlib
import csv
import hashlib
import io
import json
import os
import pathlib
import random
import struct
import tarfile
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from samples import encode_image, make_pixels, write_tar

from big_align.components.signatures import make_named
from big_align.components.tables import SOURCES
from big_align.data.labels.classes import read_classes
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.loading.extra_fields import ExtraFields
from big_align.data.loading.image_pipeline import ImagePipeline
from big_align.data.loading.loader import TrainLoader
from big_align.data.loading.rows import RowStream
from big_align.data.loading.stream import ExampleStream
from big_align.data.loading.text_samplers import CaptionSampler
from big_align.data.precomputed.embedding_files import EmbeddingFolder
from big_align.data.precomputed.joins import open_joins
from big_align.data.precomputed.shard_files import EMBEDDINGS, claim_folder, join_keys, list_shards
from big_align.data.precomputed.shard_files import write_shard as write_embeddings
from big_align.data.sources.array_source import ArraySource
from big_align.data.tags.tag_list import read_tag_list

Path, Random = pathlib.Path, random.Random
Spoil = Callable[[Path, Random], None]
SIZE = 6
VICTIM = 2
"""Examples of every kind, and the one that faults strike."""


class Kind(NamedTuple):
    """A kind of input.

    Attributes:
      write: makes an intact one in an empty folder.
      read: returns all that is read of it, as JSON holds it, and how many examples are broken.
      spoil: faults that must not go unnoticed.
      sealed: whether checksums guard it: what is read must be what was written.
    """

    write: Callable[[Path], None]
    read: Callable[[Path], tuple[Any, int]]
    spoil: Sequence[Spoil] = ()
    sealed: bool = False


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
    trained = sorted({_digest(*(batch[name] for name in sorted(batch))) for batch in batches})
    names = [source.name(*place) for place in _places(source)]
    found = zip(names, captions, labels, pixels, mask.tolist(), strict=True)
    return [[n, c, list(x), _digest(p)] for n, c, x, p, m in found if m] + trained, broken


def _places(source):
    return [(s, i) for s, size in enumerate(source.shard_sizes.tolist()) for i in range(size)]


def _digest(*arrays: np.ndarray) -> str:
    return hashlib.sha1(b"".join(array.tobytes() for array in arrays)).hexdigest()[:12]


def facts(number: int) -> dict[str, Any]:
    return {"caption": f"number {number}", "label": number % 3, "other": "x"}


# What stands in JSON in place of a label or a caption, and is none.
LABELS = (
    "2.9", "-0.5", "true", '"1_0"', "1e999", "9" * 5000, "-3", '"x"', '{"a": 1}', "[1, 2.5]", "NaN",
    '"\\u0663"', "4294967297", "[[1]]", '"2.0"',
)  # fmt: skip
CAPTIONS = (
    '""', "7", "null", '{"en": "a"}', "[1]", '"\\ud800"', "[]", '[["a"]]', '"a" "b"', '["a"',
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


PAX = (b"0 path=x\n", b"-5 path=x\n", b"x path=y\n", b"12", b"\xff" * 30, b"99 path=x\n")
PAX_SIZES = (b"14 size=-9999\n", b"11 size=x\n", b"20 size=" + b"9" * 11 + b"\n")


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
    {"image": np.zeros((SIZE, 8, 8, 3), np.float32)},
    {"image": np.zeros((SIZE, 8, 8, 4), np.uint8)},
    {"image": np.zeros((SIZE, 8, 8), np.uint8)},
    {"image": np.zeros((SIZE, 0, 8, 3), np.uint8)},
    {"image": np.array(1)},
    {"class_names": np.array([1, 2, 3])},
    {"class_names": np.array("a")},
)


def write_folder(folder: Path) -> None:
    for number in range(SIZE):
        os.makedirs(folder / "x" / "abc"[number % 3], exist_ok=True)
        path = folder / "x" / "abc"[number % 3] / f"{number}.png"
        path.write_bytes(encode_image(make_pixels(number)))


def read_folder(folder: Path) -> tuple[Any, int]:
    node = {"name": "folder", "path": f"{folder}/x"}
    source = make_named(SOURCES, node, "config.data.source")
    with EvalLoader(source, "resize(4)", 4, max_broken_fraction=1.0, num_threads=1) as loader:
        labels, batches = loader.label_sets(), list(loader.images())
        pixels = np.concatenate([b["image"][b["mask"]] for b in batches])
        return [[list(x) for x in labels], [_digest(p) for p in pixels]], loader.broken


def place(make: Callable[[Path], None]) -> Spoil:
    """Puts something in place of an image."""

    def spoil(folder: Path, rng: Random) -> None:
        path = folder / "x" / "a" / "0.png"
        path.unlink()
        make(path)

    return spoil


STRANGERS: tuple[Callable[[Path], None], ...] = (
    lambda path: path.mkdir(),
    lambda path: path.symlink_to(path.name),
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to("nothing"),
    lambda path: os.mkfifo(path),
    lambda path: path.write_bytes(b""),
)


def chunk(kind: bytes, data: bytes) -> bytes:
    crc = struct.pack(">I", zlib.crc32(kind + data))
    return struct.pack(">I", len(data)) + kind + data + crc


def png_of_size(width: int, height: int, rows: int) -> bytes:
    """A gray PNG; rows of zeros that are compressed to nothing."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    packer = zlib.compressobj(9)
    body = b"".join(packer.compress(bytes(width + 1)) for _ in range(rows)) + packer.flush()
    chunks = chunk(b"IHDR", header), chunk(b"IDAT", body), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "deep", "float", "palette")


def write_images(folder: Path) -> None:
    """A picture of noise in every format that is read."""
    noise = np.random.default_rng(0).integers(0, 256, (24, 20, 3), np.uint8)
    os.makedirs(folder / "x" / "a")
    for number, kind in enumerate(FORMATS):
        path = folder / "x" / "a" / f"{number}.{'jpg' if number == 0 else 'png'}"
        picture = Image.fromarray(noise)
        if kind == "deep":
            Image.fromarray(noise[..., 0].astype(np.uint16) << 8).save(path, "PNG")
        elif kind == "float":
            Image.fromarray(noise[..., 0] / np.float32(255)).save(path, "TIFF")
        elif kind == "palette":
            picture.quantize(16).save(path, "PNG", transparency=3)
        else:
            picture.save(path, kind)


def bomb(folder: Path, rng: Random) -> None:
    path = rng.choice(sorted((folder / "x" / "a").iterdir()))
    sizes = (13300, 13300, 13300), (2**31 - 1, 2, 1), (9, 0, 0)
    path.write_bytes(png_of_size(*rng.choice(sizes)))


def write_classes(ending: str) -> Callable[..., None]:
    def write(folder: Path, rng: Any = None, **change: str) -> None:
        told = [dict(name=f"class {n}", description=f"the {n}th", label=n) for n in range(SIZE)]
        if ending == "json":
            entries = [{key: json.dumps(x) for key, x in each.items()} for each in told]
            entries[VICTIM] |= change
            rows = ("{" + ", ".join(f'"{k}": {x}' for k, x in e.items()) + "}" for e in entries)
            text = '{"classes": [' + ", ".join(rows) + '], "templates": ["a {}"]}'
        elif ending == "csv":
            rows = (",".join(map(str, each.values())) for each in told)
            text = "name,description,label\n" + "".join(f"{row}\n" for row in rows)
        else:
            text = "".join(each["name"] + "\n" for each in told)
        (folder / f"x.{ending}").write_text(text)

    return write


def read_class_list(ending: str) -> Callable[[Path], tuple[Any, int]]:
    def read(folder: Path) -> tuple[Any, int]:
        classes = read_classes(f"{folder}/x.{ending}")
        Utf8Tokenizer()(classes.phrases(True))
        return [classes.names, classes.descriptions, classes.ids, classes.templates], 0

    return read


CLASSES = (
    {"name": '"\\ud800"'}, {"name": "7"}, {"name": "null"}, {"name": '" _"'}, {"label": "true"},
    {"label": "2.9"}, {"label": "1e999"}, {"label": "9" * 5000}, {"description": "7"},
    {"description": '"\\udfff"'}, {"other": DEEP}, {"name": "[" + '"a"' + "]"},
)  # fmt: skip


def write_tags(folder: Path, rng: Any = None, **change: str) -> None:
    entries = []
    for number in range(SIZE):
        told = dict(name=f"tag{number}", count=9 - number, weight=1.0, tokens=[number, 7])
        entries.append({key: json.dumps(x) for key, x in told.items()})
    head = {key: change.pop(key) for key in ("format", "removed", "tokenizer") if key in change}
    entries[VICTIM] |= change
    rows = ("{" + ", ".join(f'"{k}": {x}' for k, x in e.items()) + "}" for e in entries)
    head = {"format": "1", "tokenizer": '"utf-8"', "removed": "[]"} | head
    fields = [f'"{key}": {x}' for key, x in head.items()] + ['"tags": [' + ", ".join(rows) + "]"]
    (folder / "x.json").write_text("{" + ", ".join(fields) + "}")


def read_tags(folder: Path) -> tuple[Any, int]:
    tags = read_tag_list(f"{folder}/x.json")
    tags.check_tokenizer(Utf8Tokenizer())
    read = [tags.names, tags.counts.tolist(), tags.weights.tolist(), tags.tokens.tolist()]
    return [*read, tags.fingerprint, list(tags.removed)], 0


TAGS = (
    {"weight": "NaN"}, {"weight": "-1"}, {"weight": "Infinity"}, {"weight": "1e999"},
    {"weight": "true"}, {"weight": '"1"'}, {"weight": "9" * 5000}, {"count": "2.7"},
    {"count": "-1"}, {"count": "true"}, {"count": "1e30"}, {"count": '"1_0"'}, {"count": "null"},
    {"tokens": "[1099511627776]"}, {"tokens": "[-7]"}, {"tokens": "[1.5]"}, {"tokens": "[256]"},
    {"tokens": "[true]"}, {"tokens": "[]"}, {"tokens": '"12"'}, {"tokens": "[[1]]"},
    {"name": "null"}, {"name": "7"}, {"name": '""'}, {"name": '"tag1"'}, {"name": '"\\ud800"'},
    {"other": DEEP}, {"removed": "7"}, {"removed": "[7]"}, {"tokenizer": "7"}, {"format": "true"},
)  # fmt: skip


def embedded_source() -> ArraySource:
    made = arrays()
    captions = [[text] for text in made["caption"].tolist()]
    return ArraySource(made["image"], captions, made["label"], title="x.npz")


def write_embedded(folder: Path, rng: Any = None, row: Any = None, **index: Any) -> None:
    rows = np.arange(SIZE * 4, dtype=np.float32).reshape(SIZE, 4)
    if row is not None:
        rows[VICTIM] = row
    shards = list_shards(embedded_source())
    told = dict(dim=4, dtype="float32", shards=[shard._asdict() for shard in shards], made_by={})
    with contextlib.suppress(FileNotFoundError):
        (folder / "x" / "index.json").unlink()
    claim_folder(folder / "x", told | index, write=True)
    keys = join_keys(str(number) for number in range(SIZE))
    write_embeddings(folder / "x", shards[0], EMBEDDINGS, rows, keys)


def read_embedded(folder: Path) -> tuple[Any, int]:
    joins = {"image_embedding": str(folder / "x")}
    rows, broken = read_examples(source=embedded_source(), joins=joins)
    every = EmbeddingFolder(folder / "x")
    return [rows, every.read(0, every.count).tolist(), every.take(np.arange(SIZE)).tolist()], broken


INDEXES = (
    {"dim": "x"}, {"dim": 3}, {"dim": -1}, {"dim": 2**70}, {"dim": None}, {"dtype": "x"},
    {"dtype": 7}, {"dtype": "int32"}, {"shards": 7}, {"shards": [7]}, {"shards": []},
    {"shards": [{"name": "x.npz", "file": "000000-x.npz", "count": "6"}]},
    {"shards": [{"name": "x.npz", "file": "000000-x.npz", "count": -6}]},
    {"shards": [{"name": "x.npz", "file": "000000-x.npz", "count": 2**70}]},
    {"shards": [{"name": "x.npz", "file": 7, "count": 6}]},
    {"shards": [{"name": "x.npz", "file": "a\0b", "count": 6}]},
    {"shards": [{"name": "x.npz", "file": "x" * 300, "count": 6}]},
    {"shards": [{"name": "x.npz", "count": 6}]},
    {"shards": [{"name": "x.npz", "file": "000000-x.npz", "count": 6, "more": 1}]},
)  # fmt: skip


def vary(write: Callable[..., None], changes: Sequence[dict[str, Any]]) -> list[Spoil]:
    return [lambda folder, rng, c=change: write(folder, **c) for change in changes]


KINDS = {
    "tar": Kind(
        write_members(), read_tar,
        [write_members(label=text) for text in LABELS]
        + [write_members(caption=text) for text in CAPTIONS]
        + [write_members(other=DEEP), repeat_member, repeat_member]
        + [lambda f, r, x=x: write_pax(f, "0002.png", x) for x in PAX]
        + [lambda f, r, x=x: write_pax(f, "0003.json", x) for x in PAX_SIZES],
    ),
    "csv": Kind(
        write_csv, read_csv,
        vary(write_csv, [{"image": path} for path in PATHS])
        + vary(write_csv, [{"label": x} for x in ("2.9", "-0.5", "true", "1_0", "9" * 5000, "-3")])
        + vary(write_csv, [{"caption": x} for x in ("", "  ", "x" * 140_000)]),
    ),
    "tfrecord": Kind(
        write_records, read_records, [add_zeros, add_zeros, change_caption], sealed=True
    ),
    "npz": Kind(write_npz, read_npz, vary(write_npz, ARRAYS), sealed=True),
    "folder": Kind(write_folder, read_folder, [place(make) for make in STRANGERS]),
    "images": Kind(write_images, read_folder, [bomb]),
    "classes.json": Kind(
        write_classes("json"), read_class_list("json"),
        vary(write_classes("json"), CLASSES),
    ),
    "classes.csv": Kind(write_classes("csv"), read_class_list("csv")),
    "classes.txt": Kind(write_classes("txt"), read_class_list("txt")),
    "tags": Kind(write_tags, read_tags, vary(write_tags, TAGS)),
    "embeddings": Kind(
        write_embedded, read_embedded,
        vary(write_embedded, [{"row": x} for x in (np.nan, np.inf, [1, 2, 3, np.nan])])
        + vary(write_embedded, INDEXES),
    ),
}  # fmt: skip
"""By name."""


TOKENS = (
    b"NaN", b"-1", b"1e999", b"\0", b"9" * 5000, b"[" * 100_000, b'"', b"\n", b",", b"\xff\xfe",
    b"\\ud800", b"\0" * 512, b"\xff" * 8, b"null", b"\x80", b"\xef\xbb\xbf", b"{}", b"PK\3\4",
)  # fmt: skip


def mutate_bytes(data: bytes, rng: Random) -> bytes:
    """Flips, overwrites, cuts, inserts, repeats or moves some bytes."""
    start, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    if rng.random() < 0.7:
        end = min(end, start + rng.choice((1, 2, 8, 64)))
    piece = data[start:end]
    flipped = bytearray(data)
    if data:
        flipped[min(start, len(data) - 1)] ^= 1 << rng.randrange(8)
    return rng.choice(
        (
            bytes(flipped),
            bytes(flipped),
            data[:start],
            data[:start] + data[end:],
            data[:start] + piece + data[start:],
            data[:start] + rng.choice(TOKENS) + data[end:],
            data[:start] + rng.choice((b"\0", b"\xff", b" ")) * len(piece) + data[end:],
            data[:start] + rng.randbytes(len(piece)) + data[end:],
            data[:start] + piece[::-1] + data[end:],
            data + b"\0" * rng.choice((1, 16, 512, 10_240, 2**20)),
            data + data,
            data + rng.choice(TOKENS),
            b"",
        )
    )


def mutate(kind: str, folder: Path, rng: Random) -> bool:
    """Breaks an intact input; returns whether that must be noticed."""
    spoil = KINDS[kind].spoil
    if spoil and rng.random() < 0.4:
        rng.choice(spoil)(folder, rng)
        return True
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    path = rng.choice(files)
    if rng.random() < 0.08:
        path.unlink()
        rng.choice(STRANGERS)(path)
    else:
        path.write_bytes(mutate_bytes(path.read_bytes(), rng))
    return False
