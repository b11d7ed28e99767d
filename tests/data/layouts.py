"""One small data set in every layout that people have."""

import csv
import itertools
import json
import os

import numpy as np

from tests.data.samples import encode_image, write_tar

COUNT = 24
NAMES = [f"{number:05d}" for number in range(COUNT)]


def make_images() -> list[bytes]:
    noise = np.random.default_rng(0).integers(0, 256, (COUNT, 8, 8, 3), np.uint8)
    return [encode_image(pixels) for pixels in noise]


def make_captions() -> list[list[str]]:
    """One to five texts that tell the number of the image, some hard to quote."""
    ends = ['a "quoted" dog, running', "[2019] ein grüner Hund", "{x}", "it's; tab", "日本"]
    return [[f"{number} {end}" for end in ends[: 1 + number % 5]] for number in range(COUNT)]


IMAGES, CAPTIONS = make_images(), make_captions()


def by_row() -> list[tuple[int, str]]:
    """A row a caption, those of one image far from each other; images appear in their order."""
    turns = itertools.zip_longest(*CAPTIONS)
    return [(number, text) for turn in turns for number, text in enumerate(turn) if text]


def write_images(folder) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, image in zip(NAMES, IMAGES, strict=True):
        (folder / f"{name}.png").write_bytes(image)


def write_csv(path, rows, header, delimiter=",") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])
    return str(path)


def tar(folder, texts_of) -> str:
    members = []
    for number, image in enumerate(IMAGES):
        kind, text = texts_of(CAPTIONS[number])
        members += [(f"{NAMES[number]}.png", image), (f"{NAMES[number]}.{kind}", text.encode())]
    folder.mkdir(parents=True)
    return write_tar(folder / "x.tar", members)


def tar_of_lists(folder) -> dict:
    path = tar(folder, lambda texts: ("json", json.dumps({"captions": texts})))
    return dict(name="tar", path=path, caption="json.captions")


def tar_of_written_lists(folder) -> dict:
    """As img2dataset keeps a column of lists."""
    path = tar(folder, lambda texts: ("json", json.dumps({"captions": json.dumps(texts)})))
    return dict(name="tar", path=path, caption="json.captions")


def tar_of_lines(folder) -> dict:
    """As CLIP_benchmark's shards."""
    path = tar(folder, lambda texts: ("txt", "\n".join(texts) + "\n"))
    return dict(name="tar", path=[path], caption_lines=True)


def csv_of_rows(folder) -> dict:
    """As open_clip's."""
    write_images(folder / "images")
    rows = [(f"images/{NAMES[number]}.png", text) for number, text in by_row()]
    return dict(name="csv", path=write_csv(folder / "x.csv", rows, ("filepath", "title")))


def tsv_of_rows(folder) -> dict:
    """open_clip's own delimiter, in a file that is called CSV; the second mention of an image is
    spelled otherwise."""
    write_images(folder)
    rows = [(text, f"./{NAMES[n]}.png" if text != CAPTIONS[n][0] else f"{NAMES[n]}.png")
            for n, text in by_row()]  # fmt: skip
    return dict(name="csv", path=write_csv(folder / "x.csv", rows, ("Caption", "image"), "\t"))


def csv_of_lists(folder) -> dict:
    """As pandas writes a column of lists, by semicolons."""
    write_images(folder)
    rows = [(n, f"{NAMES[n]}.png", str(texts), 7) for n, texts in enumerate(CAPTIONS)]
    path = write_csv(folder / "x.csv", rows, ("", "image_path", "captions", "label"), ";")
    return dict(name="csv", path=path)


def csv_of_excel(folder) -> dict:
    """With a first line that says what separates the columns, here as no other table has them."""
    write_images(folder)
    rows = [(f"{NAMES[number]}.png", text) for number, text in by_row()]
    path = write_csv(folder / "x.csv", rows, ("image", "caption"), "^")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-16", newline="") as file:
        file.write("sep=^\r\n" + text)
    return dict(name="csv", path=path)


def imagefolder_of_parquet(folder) -> dict:
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_images(folder)
    table = {"file_name": [f"{name}.png" for name in NAMES], "text": CAPTIONS}
    pq.write_table(pa.table(table), folder / "metadata.parquet", row_group_size=5)
    return dict(name="imagefolder", path=str(folder))


def imagefolder_of_lists(folder) -> dict:
    write_images(folder)
    rows = [{"file_name": f"{n}.png", "text": c} for n, c in zip(NAMES, CAPTIONS, strict=True)]
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return dict(name="imagefolder", path=str(folder))


def imagefolder_of_rows(folder) -> dict:
    write_images(folder)
    rows = [(f"{NAMES[number]}.png", text) for number, text in by_row()]
    write_csv(folder / "metadata.csv", rows, ("file_name", "text"))
    return dict(name="imagefolder", path=f"{folder}/")


def imagefolder_of_objects(folder) -> dict:
    """A list of objects with one caption each, as BLIP's captions are distributed."""
    write_images(folder)
    rows = [{"image": f"{NAMES[number]}.png", "caption": text} for number, text in by_row()]
    (folder / "captions.json").write_text(json.dumps(rows))
    return dict(name="imagefolder", path=f"{folder}/captions.json")


def coco(folder) -> dict:
    write_images(folder / "val2017")
    images = [{"id": 900 - n, "file_name": f"{name}.png"} for n, name in enumerate(NAMES)]
    images.append({"id": 7, "file_name": "without_caption.png"})
    annotations = [{"image_id": 900 - n, "id": k, "caption": text}
                   for k, (n, text) in enumerate(by_row())]  # fmt: skip
    path = folder / "annotations" / "captions_val2017.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"images": images, "annotations": annotations, "info": {}}))
    return dict(name="coco", path=str(path))


def files(folder) -> dict:
    """As img2dataset's `files`, with the tables that it writes beside its folders."""
    for number, (name, image) in enumerate(zip(NAMES, IMAGES, strict=True)):
        shard = folder / f"{number // 10:05d}"
        shard.mkdir(parents=True, exist_ok=True)
        (shard / f"{name}.png").write_bytes(image)
        (shard / f"{name}.txt").write_text(CAPTIONS[number][0])
        (shard / f"{name}.json").write_text(json.dumps({"captions": json.dumps(CAPTIONS[number])}))
        (folder / f"{number // 10:05d}_stats.json").write_text("{}")
    return dict(name="files", path=str(folder), caption="json.captions")


def parquet(folder) -> dict:
    """As img2dataset's: small row groups, no image where a download failed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    os.makedirs(folder)
    for shard, numbers in enumerate((range(10), range(10, COUNT))):
        numbers = [n for number in numbers for n in ((number, None) if number % 4 else (number,))]
        take = lambda values: [None if n is None else values[n] for n in numbers]  # noqa: B023, E731
        written = take([json.dumps(texts) for texts in CAPTIONS])
        names, captions = take(NAMES), {"caption": written, "txt": written}
        table = {"url": names, "key": names, "png": take(IMAGES), **captions}
        pq.write_table(pa.table(table), folder / f"{shard:05d}.parquet", row_group_size=4)
    return dict(name="parquet", path=f"{folder}/*.parquet")


def parquet_of_structs(folder) -> dict:
    """As the library datasets keeps images and lists."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    os.makedirs(folder)
    images = [{"bytes": image, "path": None} for image in IMAGES]
    captions = [{"en": texts, "de": ["anders"]} for texts in CAPTIONS]
    table = pa.table({"image": images, "captions": captions, "label": [0] * COUNT})
    pq.write_table(table, folder / "x.parquet", row_group_size=5)
    return dict(name="parquet", path=f"{folder}/x.parquet", caption="captions.en")


def parquet_of_views(folder) -> dict:
    """As Polars and DataFusion keep texts and bytes in memory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    os.makedirs(folder)
    table = {
        "key": pa.array(NAMES, pa.string_view()),
        "image": pa.array(IMAGES, pa.binary_view()),
        "captions": pa.array(CAPTIONS, pa.list_(pa.string_view())),
    }
    pq.write_table(pa.table(table), folder / "x.parquet", row_group_size=5)
    return dict(name="parquet", path=f"{folder}/x.parquet")


def parquet_of_paths(folder) -> dict:
    """As the library datasets writes a folder of images that it has loaded."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_images(folder)
    images = [{"bytes": None, "path": f"{folder}/{name}.png"} for name in NAMES]
    pq.write_table(pa.table({"image": images, "text": CAPTIONS}), folder / "x.parquet")
    return dict(name="parquet", path=f"{folder}/x.parquet")


def tfrecord(folder, written: bool = True) -> dict:
    """As img2dataset's."""
    import tensorflow as tf

    def feature(*texts: bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=texts))

    os.makedirs(folder)
    with tf.io.TFRecordWriter(f"{folder}/x.tfrecord") as writer:
        for name, image, texts in zip(NAMES, IMAGES, CAPTIONS, strict=True):
            caption = [json.dumps(texts)] if written else texts
            features = {
                "key": feature(name.encode()),
                "png": feature(image),
                "txt": feature(*(text.encode() for text in caption)),
                "caption": feature(b"not this one"),
            }
            made = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(made.SerializeToString())
    return dict(name="tfrecord", path=f"{folder}/x.tfrecord")


def tfrecord_of_lists(folder) -> dict:
    return tfrecord(folder, written=False)


NAMELESS = (parquet_of_structs, tfrecord, tfrecord_of_lists)
"""Layouts that do not keep the names of files, or not where they are read without the rest."""

LAYOUTS = [
    tar_of_lists,
    tar_of_written_lists,
    tar_of_lines,
    csv_of_rows,
    tsv_of_rows,
    csv_of_lists,
    csv_of_excel,
    imagefolder_of_parquet,
    imagefolder_of_lists,
    imagefolder_of_rows,
    imagefolder_of_objects,
    coco,
    files,
    parquet,
    parquet_of_structs,
    parquet_of_views,
    parquet_of_paths,
    tfrecord,
    tfrecord_of_lists,
]
