"""Makers of small images and shards."""

import io
import json
import tarfile

import numpy as np
from PIL import Image


def encode_image(pixels: np.ndarray, kind: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def make_pixels(number: int, size: int = 8) -> np.ndarray:
    """An image that tells its number by its color."""
    return np.broadcast_to(np.uint8([number % 256, number // 256, 7]), (size, size, 3)).copy()


def write_tar(path, members: list[tuple[str, bytes]], **options) -> str:
    with tarfile.open(path, "w", **options) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return str(path)


def make_members(number: int) -> list[tuple[str, bytes]]:
    """The members of an example: image, caption, two captions and a label in JSON, class."""
    facts = {"captions": [f"number {number}", f"n {number}"], "about": {"label": number % 10}}
    return [
        (f"{number:06d}.png", encode_image(make_pixels(number))),
        (f"{number:06d}.txt", f"number {number}\n".encode()),
        (f"{number:06d}.json", json.dumps(facts).encode()),
        (f"{number:06d}.cls", str(number % 10).encode()),
    ]
