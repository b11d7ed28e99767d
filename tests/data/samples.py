"""Makers of small images and shards."""

import io
import json
import tarfile

import numpy as np
from PIL import Image

from big_align.data.sources.array_source import ArraySource
from big_align.data.sources.tar_source import TarSource


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


def make_array(size: int) -> ArraySource:
    """Noise that tells the number of its image in one value, two captions each."""
    noise = np.random.default_rng(0).integers(0, 256, (size, 8, 8, 3), np.uint8)
    noise[:, 0, 0, 0] = np.arange(size)
    captions = [[f"number {number}", f"n {number}"] for number in range(size)]
    return ArraySource(noise, captions, np.arange(size))


BROKEN = {3, 4, 77, 120, 121, 122}
"""Examples that tests break."""


def break_some(tmp_path, broken, total=200) -> TarSource:
    """Shards of 40 examples in which some images are cut off, or captions are not UTF-8."""
    for shard in range(0, total, 40):
        members = []
        for number in range(shard, shard + 40):
            image, text, *_ = make_members(number)
            if number in broken and number % 2:
                image = (image[0], image[1][:45])
            elif number in broken:
                text = (text[0], b"number \xff")
            members += [image, text]
        write_tar(tmp_path / f"train-{shard // 40:02d}.tar", members)
    return TarSource(f"{tmp_path}/train-*.tar")
