"""Writes the files that readers of the pages have, out of real pairs: `python -m tests.page_files`.

Each function writes one layout into data/ of the current folder, or a file beside it.
"""

import csv
import io
import json
import os
import pathlib
import sys
import tarfile
from collections.abc import Iterator

COUNT = 400
FOLDER = pathlib.Path("data")


def read_pairs() -> Iterator[tuple[str, bytes, list[str]]]:
    """Yields name, image and captions of the first pairs of Flickr8k's development split."""
    path = pathlib.Path(os.environ["BIG_ALIGN_DATA"]) / "flickr8k" / "dev-00000.tar"
    with tarfile.open(path) as tar:
        data = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}
    for name in sorted(name for name in data if name.endswith(".jpg"))[:COUNT]:
        key = name.removesuffix(".jpg")
        yield name, data[name], json.loads(data[f"{key}.json"])["captions"]


def write_table(name: str, delimiter: str, columns: tuple[str, str]) -> None:
    """Writes images and a table with a row a caption."""
    (FOLDER / "images").mkdir(parents=True, exist_ok=True)
    file = io.StringIO()
    rows = csv.writer(file, delimiter=delimiter)
    rows.writerow(columns)
    for image, data, captions in read_pairs():
        (FOLDER / "images" / image).write_bytes(data)
        rows.writerows((f"images/{image}", caption) for caption in captions)
    (FOLDER / name).write_text(file.getvalue())


def write_csv() -> None:
    """Writes the table that open_clip reads by default, with commas."""
    write_table("captions.csv", ",", ("filepath", "title"))


def write_tsv() -> None:
    """Writes a table with tabs."""
    write_table("captions.tsv", "\t", ("image", "caption"))


def write_tfrecord() -> None:
    """Writes records with img2dataset's features."""
    import tensorflow as tf

    def feature(value: bytes) -> tf.train.Feature:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    with tf.io.TFRecordWriter(str(FOLDER / "laion-00000.tfrecord")) as writer:
        for name, data, captions in read_pairs():
            fields = {"key": name.encode(), "jpg": data, "caption": captions[0].encode()}
            features = tf.train.Features(feature={k: feature(v) for k, v in fields.items()})
            writer.write(tf.train.Example(features=features).SerializeToString())


def write_parquet() -> None:
    """Writes rows with img2dataset's columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {"key": name.removesuffix(".jpg"), "jpg": data, "caption": captions[0]}
        for name, data, captions in read_pairs()
    ]
    pq.write_table(pa.Table.from_pylist(rows), FOLDER / "laion-00000.parquet")


def write_files() -> None:
    """Writes a folder with an image and its caption in files."""
    folder = FOLDER / "laion" / "00000"
    folder.mkdir(parents=True, exist_ok=True)
    for name, data, captions in read_pairs():
        (folder / name).write_bytes(data)
        (folder / name).with_suffix(".txt").write_text(captions[0])


def write_image_folder() -> None:
    """Writes a folder with metadata.jsonl, as datasets' imagefolder."""
    folder = FOLDER / "photographs"
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, data, captions in read_pairs():
        (folder / name).write_bytes(data)
        lines.append(json.dumps({"file_name": name, "text": captions[0]}))
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")


def write_coco() -> None:
    """Writes images and their captions as COCO does."""
    images, annotations = [], []
    for place in (FOLDER / "val2017", FOLDER / "annotations"):
        place.mkdir(parents=True, exist_ok=True)
    for number, (name, data, captions) in enumerate(read_pairs()):
        (FOLDER / "val2017" / name).write_bytes(data)
        images.append({"id": number, "file_name": name})
        for caption in captions:
            place = {"id": len(annotations), "image_id": number}
            annotations.append({**place, "caption": caption})
    found = json.dumps({"images": images, "annotations": annotations})
    (FOLDER / "annotations" / "captions_val2017.json").write_text(found)


def write_classes() -> None:
    """Writes a folder for each of two classes: whether the first caption names a dog."""
    for name, data, captions in read_pairs():
        folder = FOLDER / "photos" / ("dog" if "dog" in captions[0] else "no_dog")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def write_years() -> None:
    """Writes a table of years and places of the photographs in folders of classes."""
    rows = ["path,year,place"]
    for number, path in enumerate(sorted((FOLDER / "photos").glob("*/*.jpg"))):
        place = ("Bern", "Rome")[number % 2]
        rows.append(f"{path.relative_to(FOLDER)},{2015 + number % 10},{place}")
    (FOLDER / "years.csv").write_text("\n".join(rows) + "\n")


def write_photo() -> None:
    """Writes one photograph beside the folder."""
    _, data, _ = next(read_pairs())
    pathlib.Path("photo.jpg").write_bytes(data)


if __name__ == "__main__":
    globals()[f"write_{sys.argv[1]}"]()
