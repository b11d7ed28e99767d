"""Small folders of images in every format, and what can stand there instead."""

import functools
import os
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from example_kinds import SIZE, Path, Random, Spoil, digest
from PIL import Image
from samples import encode_image, make_pixels

from big_align.config.components.signatures import make_named
from big_align.config.components.tables import SOURCES
from big_align.data.loading.evaluation_loader import EvalLoader


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
        return [[list(x) for x in labels], [digest(p) for p in pixels]], loader.broken


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


@functools.cache
def png_of_size(width: int, height: int, rows: int) -> bytes:
    """A gray PNG; rows of zeros that are compressed to nothing."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    packer = zlib.compressobj(1)
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
    sizes = (13300, 13300, 13300), (2**31 - 1, 2, 0), (9, 0, 0)
    path.write_bytes(png_of_size(*rng.choice(sizes)))


FOLDER_FAULTS = [place(make) for make in STRANGERS]
