"""Raw pairs, as Parquet files, with everything planted that rules look for."""

import io
import pathlib
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

BOILERPLATE = "click to enlarge this image"
SMALL = "--max_texts=5", "--shard_size=15"


def encode(pixels, kind="PNG", **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def draw_image(seed, width=240, height=220):
    """Draws an image that differs from those of other seeds; it is small as a file."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2] = np.random.default_rng(seed).integers(0, 255, 3)
    pixels[0, 0] = seed % 256, seed // 256 % 256, 0
    return encode(pixels, "JPEG", quality=95) if seed % 2 else encode(pixels)


def make_rows(count=40):
    """Returns (image, text) of synthetic pairs: good ones, then one of each fault or more."""
    words = "red green blue small large old new dog cat bird house tree".split()
    rows = []
    for seed in range(count):
        picked = [words[(seed + n * n) % len(words)] for n in range(3 + seed % 5)]
        rows.append((draw_image(seed), " ".join(picked)))
    rows += [(draw_image(1000 + n), BOILERPLATE) for n in range(12)]
    rows += [(draw_image(2000), f"old dog house {words[n]} and tree") for n in range(8)]
    rows += [(draw_image(3), rows[3][1]), (draw_image(3), "and new bird  house &amp; tree")]
    rows += [(draw_image(3000, 150, 400), "small old tree house")]
    rows += [(draw_image(3001, 900, 210), "large red cat and dog")]
    rows += [(draw_image(3002), "dog"), (draw_image(3003), "dog cat " * 15)]
    rows += [(draw_image(3004), "new bird hapaxlegomenon house")]
    rows += [(b"not an image", "red dog house"), (draw_image(1)[:300], "blue dog house")]
    rows += [(draw_image(3005), ""), (None, "green cat house")]
    order = np.random.default_rng(0).permutation(len(rows))
    return [rows[n] for n in order]


def write_parquet(folder, rows, files=3, group=10, column="caption"):
    """Writes rows into Parquet files with `group` rows in a group."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    size = -(-len(rows) // files)
    for number in range(files):
        part = rows[number * size : (number + 1) * size]
        images, texts = [row[0] for row in part], [row[1] for row in part]
        urls = [f"https://a.test/{number}/{row}" for row in range(len(part))]
        columns = {"jpg": pa.array(images, pa.binary()), column: pa.array(texts), "url": urls}
        table = pa.table(columns)
        pq.write_table(table, folder / f"raw-{number:05d}.parquet", row_group_size=group)
    return f"{folder}/raw-*.parquet"


def read_output(folder):
    """Returns the bytes of all files of an output, by name."""
    paths = sorted(pathlib.Path(folder).iterdir())
    return {path.name: path.read_bytes() for path in paths if path.is_file()}


def read_tar(path):
    """Returns the members of a tar file by name."""
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar.getmembers()}
