"""An image is found by what it shows: one without a usable caption is indexed like the others."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from indexes import build, encode_photo, load, read, write_photos

from big_align.config.components.source_flags import open_source
from big_align.core.tf_records import encode_record
from big_align.data import tensorflow_on_cpu
from tests.data.samples import write_tar

TEXTS = ("a dog on grass", "", "a red cat", None, "{'en': 'a cat'}")
"""Captions of five photographs: the second is empty, the fourth absent, the fifth no text."""


def write_csv(folder):
    write_photos(folder, {f"{n}.jpg": n for n in range(5)})
    rows = [f'{n}.jpg,"{text or ""}"' for n, text in enumerate(TEXTS)]
    (folder / "photos.csv").write_text("\n".join(["image,caption", *rows]) + "\n")
    return folder / "photos.csv", "csv"


def write_json_lines(folder):
    write_photos(folder, {f"{n}.jpg": n for n in range(5)})
    rows = [{"file_name": f"{n}.jpg", "text": text} for n, text in enumerate(TEXTS)]
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder, "imagefolder"


def write_coco(folder):
    write_photos(folder / "images", {f"{n}.jpg": n for n in range(5)})
    images = [{"id": n, "file_name": f"{n}.jpg"} for n in range(5)]
    texts = [{"image_id": n, "caption": text} for n, text in enumerate(TEXTS) if text is not None]
    (folder / "x.json").write_text(json.dumps({"images": images, "annotations": texts}))
    return folder / "x.json", "coco"


def write_shard(folder):
    folder.mkdir()
    members = []
    for n, text in enumerate(TEXTS):
        members.append((f"{n}.jpg", encode_photo(n)))
        members += [] if text is None else [(f"{n}.txt", text.encode())]
    return write_tar(folder / "x.tar", members), "tar"


def write_files(folder):
    write_photos(folder, {f"{n}.jpg": n for n in range(5)})
    for n, text in enumerate(TEXTS):
        if text is not None:
            (folder / f"{n}.txt").write_text(text)
    return folder, "files"


def write_parquet(folder):
    folder.mkdir()
    table = {"jpg": [encode_photo(n) for n in range(5)], "caption": list(TEXTS)}
    pq.write_table(pa.table(table), folder / "x.parquet")
    return folder / "x.parquet", "parquet"


def write_tfrecord(folder):
    folder.mkdir()
    train, records = tensorflow_on_cpu.load().train, b""
    for n, text in enumerate(TEXTS):
        told = {"jpg": encode_photo(n)} | ({} if text is None else {"caption": text.encode()})
        features = {
            name: train.Feature(bytes_list=train.BytesList(value=[value]))
            for name, value in told.items()
        }
        message = train.Example(features=train.Features(feature=features))
        records += encode_record(message.SerializeToString())
    (folder / "x.tfrecord").write_bytes(records)
    return folder / "x.tfrecord", "tfrecord"


LAYOUTS = (
    write_csv, write_json_lines, write_coco, write_shard, write_files, write_parquet,
    write_tfrecord,
)  # fmt: skip


@pytest.mark.parametrize("write", LAYOUTS)
def test_every_image_is_indexed_with_the_captions_that_can_be_used(model, tmp_path, write, caplog):
    path, name = write(tmp_path / "photos")
    for embedded in (5, 0):  # the second run reads texts alone
        with caplog.at_level("WARNING", logger="absl"):
            report = build(model, str(path), tmp_path / "index", name=name)
        assert (report.images, report.embedded, report.broken) == (5, embedded, 0)
        assert (report.captions, report.without_texts) == (2, 3)
        assert "is indexed without texts: " in caplog.text and "left out" not in caplog.text
        found = read(tmp_path / "index")
        assert found.captions["text"].to_pylist() == ["a dog on grass", "a red cat"]
        assert found.images["captions"].to_pylist() == [[0], [], [1], [], []]
        photos = [encode_photo(n) for n in range(5)]
        expected = model.embed_images(photos)
        np.testing.assert_allclose(np.float32(found.vectors["images"]), expected, atol=1e-3)
    hit = load(tmp_path / "index", model).search(images=photos[3], k=1)[0]
    assert (hit.row, hit.captions) == (3, [])


def test_a_shard_without_any_caption_is_indexed(model, tmp_path):
    members = [
        part for n in range(3) for part in ((f"{n}.jpg", encode_photo(n)), (f"{n}.cls", b"1"))
    ]
    write_tar(tmp_path / "x.tar", members)
    report = build(model, f"{tmp_path}/x.tar", tmp_path / "index")
    assert (report.images, report.broken, report.captions, report.without_texts) == (3, 0, 0, 3)


def test_an_image_that_cannot_be_decoded_is_broken_with_and_without_a_caption(model, tmp_path):
    path, name = write_files(tmp_path / "photos")
    for n in (2, 3):
        (path / f"{n}.jpg").write_bytes(b"no image")
    report = build(model, str(path), tmp_path / "index", name=name)
    assert (report.images, report.broken, report.without_texts) == (3, 2, 2)
    names = read(tmp_path / "index").images["name"].to_pylist()
    assert names == [f"{path}/{n}.jpg" for n in (0, 1, 4)]


@pytest.mark.parametrize("write", [write_coco, write_shard, write_files])
def test_other_tools_leave_out_what_has_no_caption(tmp_path, write):
    path, name = write(tmp_path / "photos")
    source, node = open_source(str(path), name, captions=True)
    assert source.shard_sizes.tolist() == [4] and "needs_texts" not in node
