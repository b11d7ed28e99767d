"""Photographs, a model small enough to embed them at once, and what an index of them holds."""

import io
import pathlib

import numpy as np
from PIL import Image

import big_align
from big_align.config.components.source_flags import open_source
from big_align.use.search.index_building import IndexBuilder
from big_align.use.search.stores.index_folder import (
    KINDS,
    generation_folder,
    read_generation,
    read_info,
)

TEXTS = ("a dog on grass", "a red cat", "a photo of a dog", "a cat", "red grass")


def encode_photo(seed: int) -> bytes:
    """A JPEG of a few colors that tell it from others."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (3, 4, 3)).astype(np.uint8))
    file = io.BytesIO()
    coarse.resize((40, 30), Image.Resampling.NEAREST).save(file, "JPEG", quality=95)
    return file.getvalue()


def write_photos(folder: pathlib.Path, seeds: dict[str, int]) -> str:
    """Writes photographs by their names; returns the pattern of all."""
    for name, seed in seeds.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(encode_photo(seed))
    return f"{folder}/**/*.jpg"


def write_table(folder: pathlib.Path, count: int) -> str:
    """Writes photographs and a CSV with captions, a year and a place of each."""
    write_photos(folder, {f"{n:02d}.jpg": n for n in range(count)})
    lines = [
        f"{n:02d}.jpg,{TEXTS[n % 5]},{2000 + n % 7},{('Bern', 'Rome', '')[n % 3]}"
        for n in range(count)
    ]
    (folder / "photos.csv").write_text("\n".join(["image,caption,year,place", *lines]) + "\n")
    return str(folder / "photos.csv")


def build(
    model, source: str, folder: pathlib.Path, captions=True, settings=None, name=None, **more
):
    """Builds an index; returns the report."""
    opened, node = open_source(source, name, captions=captions, needs_texts=False)
    made_by = {"model": "nowhere", "source": node}
    return IndexBuilder(model, folder, made_by, **settings or {}).build(opened, **more)


def read(folder: pathlib.Path):
    """Returns the generation of an index."""
    info = read_info(folder)
    return read_generation(generation_folder(folder, info), info["files"])


def list_thumbnails(found) -> list[bytes]:
    return [found.read_thumbnail(row) for row in range(len(found.images))]


def assert_same(first: pathlib.Path, second: pathlib.Path) -> None:
    """Two indexes hold the same; embeddings differ by rounding alone."""
    one, two = read(first), read(second)
    assert one.images.equals(two.images)
    assert one.captions.equals(two.captions)
    assert one.metadata.equals(two.metadata)
    assert list_thumbnails(one) == list_thumbnails(two)
    for kind in KINDS:
        assert one.vectors[kind].dtype == two.vectors[kind].dtype
        np.testing.assert_allclose(
            np.float32(one.vectors[kind]), np.float32(two.vectors[kind]), atol=1e-3
        )


def load(folder: pathlib.Path, model):
    return big_align.load_index(folder, model)
