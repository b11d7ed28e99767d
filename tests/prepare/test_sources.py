"""Whatever a source reads becomes shards that hold the same (`--rules=none`)."""

import csv
import io
import itertools
import json
import os
import pathlib
import shutil
import sys
import tarfile

import pytest
from plain_job import write_plainly
from raw_pairs import draw_image, read_tar, write_parquet

from big_align.config.components.source_flags import open_source
from big_align.core.errors import UserError
from big_align.data.sources.tar_source import TarSource
from big_align.prepare.examination import Examination
from big_align.prepare.inputs import FileRows, find_inputs, list_stretches
from big_align.prepare.on_beam.job import remove_work, write_quarantine
from big_align.prepare.plan import JobPlan
from big_align.prepare.rules import PRESETS
from big_align.prepare.steps import list_classes

IMAGES = [draw_image(n, 50 + n, 40) for n in range(6)]
TEXTS = [["a <b>dog</b>", "a  dog"], ["a cat"], ["the cat"], ["a bird"], ["bird"], ["a tree"]]


def write_images(folder):
    folder.mkdir()
    for n, image in enumerate(IMAGES):
        (folder / f"{n}.jpg").write_bytes(image)


def write_files(folder):
    write_images(folder)
    for n, texts in enumerate(TEXTS):
        (folder / f"{n}.json").write_text(json.dumps({"captions": texts}))
    return str(folder), ["caption=json.captions"]


def write_csv(folder):
    write_images(folder)
    with open(folder / "x.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["filepath", "title"])
        rows.writerows((f"{n}.jpg", text) for n, texts in enumerate(TEXTS) for text in texts)
    return f"{folder}/x.csv", []


def write_coco(folder):
    write_images(folder)
    images = [{"id": n, "file_name": f"{n}.jpg"} for n in range(len(IMAGES))]
    captions = [{"image_id": n, "caption": c} for n, texts in enumerate(TEXTS) for c in texts]
    found = json.dumps({"images": images, "annotations": captions})
    (folder / "captions.json").write_text(found)
    return f"{folder}/captions.json", []


def write_metadata(folder):
    write_images(folder)
    lines = [json.dumps({"file_name": f"{n}.jpg", "text": texts}) for n, texts in enumerate(TEXTS)]
    (folder / "metadata.jsonl").write_text("\n".join(lines))
    return str(folder), []


def write_table(folder):
    return write_parquet(folder, list(zip(IMAGES, TEXTS, strict=True)), files=2), []


def write_tar(folder):

    folder.mkdir()
    for n, (image, texts) in enumerate(zip(IMAGES, TEXTS, strict=True)):
        with tarfile.open(folder / f"x,{n // 4}.tar", "a") as tar:
            about = json.dumps({"captions": texts}).encode()
            for ending, data in (("jpg", image), ("json", about)):
                info = tarfile.TarInfo(f"{n}.{ending}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return f"{folder}/*.tar", ["caption=json.captions"]


def write_classes(folder):
    for n, image in enumerate(IMAGES):
        (folder / ("cat", "dog")[n % 2]).mkdir(parents=True, exist_ok=True)
        (folder / ("cat", "dog")[n % 2] / f"{n}.jpg").write_bytes(image)
    return str(folder), []


WRITERS = [
    write_files, write_csv, write_coco, write_metadata, write_table, write_tar, write_classes,
]  # fmt: skip


def read_all(source):
    sizes = source.shard_sizes.tolist()
    read = [source.read(shard, n) for shard, size in enumerate(sizes) for n in range(size)]
    return sorted((each.image, tuple(each.captions), each.labels) for each in read)


def write_shards(path, output, *arguments, kind=None, shard_format="tar"):
    inputs = find_inputs(path, kind, arguments)
    rules = PRESETS["none"]
    plan = JobPlan(
        inputs, f"{output}", f"{output}/work", Examination(rules.normalize), rules, shard_size=4,
        shard_format=shard_format,
    )  # fmt: skip
    write_plainly(plan)
    return plan


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_shards_hold_what_the_source_holds(write, tmp_path):
    path, arguments = write(tmp_path / "raw")
    plan = write_shards(path, tmp_path / "out", *arguments)
    labels = {"label": "json.labels"} if write is write_classes else {}
    caption = "" if labels else "json.captions"
    shards = TarSource(f"{tmp_path}/out/pairs-*.tar", caption, **labels)
    assert len(shards.shard_sizes) == 2
    if write is write_tar:
        path = sorted(map(str, (tmp_path / "raw").glob("*.tar")))
        assert read_all(shards) == read_all(TarSource(path, "json.captions"))
    else:
        source, _ = open_source(path, plan.inputs.kind, arguments, captions=True)
        assert read_all(shards) == read_all(source)
    if labels:
        assert list_classes(plan) == ["cat", "dog"]


@pytest.mark.parametrize("second", [("bird", "cat"), ("cat", "dog")])
def test_names_of_labels_are_those_of_all_files_or_refused(tmp_path, second):
    for n, names in enumerate((("cat", "dog"), second)):
        for name in names:
            (tmp_path / f"{n}{name}.png").write_bytes(IMAGES[n])
        rows = "".join(f"{n}{name}.png,{name}\n" for name in names)
        (tmp_path / f"{n}.csv").write_text(f"image,category\n{rows}")
    path = f"{tmp_path}/0.csv,{tmp_path}/1.csv"
    if second == ("cat", "dog"):
        assert list_classes(write_shards(path, tmp_path / "out", "label=category")) == [*second]
        return
    plan = write_shards(path, tmp_path / "out", "label=category")
    with pytest.raises(UserError, match="0.csv and .*1.csv do not have the same .*'bird' is in o"):
        list_classes(plan)


def test_a_folder_that_has_changed_is_another_input(tmp_path):
    write_classes(tmp_path / "raw")
    before = find_inputs(str(tmp_path / "raw"))
    assert find_inputs(str(tmp_path / "raw")) == before
    (tmp_path / "raw" / "cat" / "more.jpg").write_bytes(IMAGES[0])
    assert find_inputs(str(tmp_path / "raw")) != before


@pytest.mark.skipif(sys.platform == "darwin", reason="every name is UTF-8 there")
def test_files_whose_names_differ_in_what_is_not_utf8_have_other_keys(tmp_path):
    write_table(tmp_path / "tables")
    for name in (b"\xff.parquet", b"\xfe.parquet"):
        shutil.copy(tmp_path / "tables" / "raw-00000.parquet", os.fsencode(tmp_path) + b"/" + name)
    assert len(set(find_inputs(f"{tmp_path}/*.parquet").stems)) == 2


def test_only_files_of_the_job_are_removed(tmp_path):
    path, arguments = write_csv(tmp_path / "raw")
    plan = write_shards(path, tmp_path / "out", *arguments)
    (tmp_path / "out" / "work" / "mine.txt").write_text("mine")
    remove_work(plan)
    assert [x.name for x in (tmp_path / "out" / "work").iterdir()] == ["mine.txt"]
    (tmp_path / "out" / "work" / "mine.txt").unlink()
    remove_work(plan)
    assert not (tmp_path / "out" / "work").exists()


def test_a_damaged_file_costs_no_other(tmp_path):
    rows = [(image, texts[0]) for image, texts in zip(IMAGES, TEXTS, strict=True)]
    path = write_parquet(tmp_path / "raw", rows, files=3)
    damaged = tmp_path / "raw" / "raw-00001.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-30])
    write_quarantine(write_shards(path, tmp_path / "out"))
    (line,) = (tmp_path / "out" / "quarantine.jsonl").read_text().splitlines()
    told = json.loads(line)
    assert told["input"] == str(damaged) and "no whole Parquet file" in told["reason"]
    members = read_tar(tmp_path / "out" / "pairs-00000.tar")
    assert {data for name, data in members.items() if name.endswith(("jpg", "png"))} == {
        image for image, _ in rows[:2] + rows[4:]
    }


def test_a_bad_line_of_a_table_costs_no_other(tmp_path):
    raw = tmp_path / "raw"
    write_images(raw)
    bad = [b"1.jpg", b"2.jpg,\xff", b'3.jpg,"a bird']
    lines = [b"filepath,title", b"0.jpg,a dog", *bad, b"4.jpg,x"]
    (raw / "x.csv").write_bytes(b"\n".join(lines))
    (raw / "y.jsonl").write_text('{"file_name": "5.jpg", "text": "a tree"}\n{\n')
    for name, numbers, wrong in (("x.csv", (0, 4), [3, 4, 5]), ("y.jsonl", (5,), [2])):
        output = tmp_path / f"out_{name}"
        write_quarantine(write_shards(str(raw / name), output))
        found = list(map(json.loads, (output / "quarantine.jsonl").read_text().splitlines()))
        assert [each["line"] for each in found] == wrong
        assert {each["input"] for each in found} == {str(raw / name)}
        assert all(each["reason"] and each["count"] == 1 for each in found)
        read = read_all(TarSource(f"{output}/pairs-*.tar"))
        assert {image for image, _, _ in read} == {IMAGES[n] for n in numbers}


def test_every_line_of_a_table_is_a_text_or_in_the_quarantine(tmp_path):
    raw = tmp_path / "raw"
    write_images(raw)
    lines = ["filepath,title", "0.jpg,a dog", "0.jpg,", "0.jpg,dog", ",x", "1.jpg, ", "2.jpg,a cat"]
    (raw / "x.csv").write_text("\n".join(lines))
    objects = [
        {"file_name": "0.jpg", "text": "a dog"},
        {"file_name": "0.jpg", "text": 7.5},
        {"file_name": "0.jpg"},
        {"file_name": "1.jpg", "text": [["a"]]},
        {"file_name": "0.jpg", "text": "dog"},
        {"file_name": "2.jpg", "text": "a cat"},
    ]
    (raw / "y.jsonl").write_text("\n".join(map(json.dumps, objects)))
    for name, wrong, keys in (
        ("x.csv", [3, 5, 6], ["x-000000002", "x-000000007"]),
        ("y.jsonl", [2, 3, 4], ["y-000000001", "y-000000006"]),
    ):
        output = tmp_path / f"out_{name}"
        write_quarantine(write_shards(str(raw / name), output))
        found = list(map(json.loads, (output / "quarantine.jsonl").read_text().splitlines()))
        assert [each["line"] for each in found] == wrong
        members = read_tar(output / "pairs-00000.tar")
        assert sorted(each for each in members if each.endswith(".txt")) == [
            f"{key}.txt" for key in keys
        ]
        texts = [json.loads(members[f"{key}.json"])["captions"] for key in keys]
        assert texts == [["a dog", "dog"], ["a cat"]]


def test_rows_are_counted_with_those_that_have_no_image(tmp_path):
    """So that a key names a row of the file, whatever else was left out."""
    images = [None if n in (0, 3) else IMAGES[n] for n in range(6)]
    path = write_parquet(tmp_path / "raw", list(zip(images, "abcdef", strict=True)), files=1)
    plan = write_shards(path, tmp_path / "out")
    write_quarantine(plan)
    (told,) = map(json.loads, (tmp_path / "out" / "quarantine.jsonl").read_text().splitlines())
    assert (told["rows"], told["count"]) == ([0, 3], 2)
    members = read_tar(tmp_path / "out" / "pairs-00000.tar")
    texts = {key: text.decode() for key, text in members.items() if key.endswith(".txt")}
    assert texts == {f"raw-00000-{n:09d}.txt": "abcdef"[n] for n in (1, 2, 4, 5)}
    for chunk in (1, 2, 3, 100):  # stretches are of rows, and none is in two
        rows = FileRows(plan.inputs.open(0))
        found = [row for s in list_stretches(0, rows.count, chunk) for row, *_ in rows.locate(s)]
        assert found == [1, 2, 4, 5]
    with pytest.raises(UserError, match="no example in row 3"):
        rows.find(3)


@pytest.mark.parametrize(
    ("paths", "stems"),
    [
        (["raw/0.parquet", "raw/1.parquet"], ["0", "1"]),
        (["a/0.parquet", "b/0.parquet"], ["a_0", "b_0"]),
        (["/x/a/0.parquet", "/x/b/0.parquet"], ["a_0", "b_0"]),
        (["0.parquet"], ["0"]),
        (["./raw/0.parquet", "./raw/1.parquet"], ["0", "1"]),
        (["raw//0.parquet", "./raw/../raw/1.parquet"], ["0", "1"]),
        (["./0.parquet"], ["0"]),
    ],
)
def test_files_of_one_name_are_told_apart_by_their_folders(paths, stems, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [f"{tmp_path}{path}" if path[0] == "/" else path for path in paths]
    for path in map(pathlib.Path, paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    assert list(find_inputs(",".join(paths)).stems) == stems


@pytest.mark.parametrize("shard_format", ["tfrecord", "array_record"])
@pytest.mark.parametrize("write", [write_metadata, write_classes], ids=lambda write: write.__name__)
def test_records_hold_what_tar_shards_hold_in_the_same_places(write, shard_format, tmp_path):
    if shard_format == "array_record":
        pytest.importorskip("array_record.python.array_record_module")
    path, arguments = write(tmp_path / "raw")
    write_shards(path, tmp_path / "tar", *arguments)
    write_shards(path, tmp_path / "records", *arguments, shard_format=shard_format)
    write_shards(path, tmp_path / "again", *arguments, shard_format=shard_format)
    labeled = write is write_classes
    fields = {"caption": "", "label": "json.labels"} if labeled else {"caption": "json.captions"}
    tars = TarSource(f"{tmp_path}/tar/pairs-*.tar", **fields)
    arguments = ["label=label", "caption="] if labeled else []
    records, node = open_source(
        f"{tmp_path}/records/pairs-*.{shard_format}", None, arguments, captions=True
    )
    assert node["name"] == "tfrecord"
    assert records.shard_sizes.tolist() == tars.shard_sizes.tolist() == [3, 3]
    for place in itertools.product(range(2), range(3)):
        found, wanted = records.read(*place), tars.read(*place)
        assert (found.image, found.labels) == (wanted.image, wanted.labels)
        assert found.captions == wanted.captions and (found.captions or found.labels)
    for made in (tmp_path / "records").glob(f"*.{shard_format}"):
        assert made.read_bytes() == (tmp_path / "again" / made.name).read_bytes()


def test_a_record_tells_where_it_comes_from(tmp_path):
    tf = pytest.importorskip("tensorflow")
    path, _ = write_metadata(tmp_path / "raw")
    write_shards(path, tmp_path / "out", shard_format="tfrecord")
    paths = sorted(map(str, (tmp_path / "out").glob("*.tfrecord")))
    for data in tf.data.TFRecordDataset(paths).as_numpy_iterator():  # TensorFlow's own reader
        features = tf.train.Example.FromString(data).features.feature
        about = json.loads(features["json"].bytes_list.value[0])
        key = features["key"].bytes_list.value[0].decode()
        assert key.endswith(f"-{about['origin']['row']:09d}")
        captions = [text.decode() for text in features["caption"].bytes_list.value]
        assert captions == about["captions"] == TEXTS[about["origin"]["row"] - 1]  # of lines
        assert features["image"].bytes_list.value[0] == IMAGES[about["origin"]["row"] - 1]
