"""However an index came about, it holds what building it at once would."""

import json
import os

import numpy as np
import pyarrow as pa
import pytest
from indexes import (
    TEXTS,
    assert_same,
    build,
    encode_photo,
    list_thumbnails,
    load,
    read,
    write_photos,
    write_table,
)

from big_align.config.components.source_flags import open_source
from big_align.core.errors import UserError
from big_align.core.whole_files import lock_folder
from big_align.pages.thumbnails import make_thumbnail
from big_align.use.search import index_building
from big_align.use.search.index_building import IndexBuilder
from big_align.use.search.metadata import MetadataTable
from big_align.use.search.stores import folder_writer, generations, index_folder
from big_align.use.search.stores.index_folder import KINDS, read_info, write_info
from big_align.use.search.stores.pending_rows import PendingRows
from big_align.use.search.stores.scann_rows import ScannSettings
from tests.data.samples import write_tar

SEEDS = {f"{'ab'[n % 2]}/{n:02d}.jpg": n for n in range(13)}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(index_building, "BATCH", 4)
    monkeypatch.setattr(index_building, "TEXTS", 4)


def test_rows_are_the_embeddings_of_the_files_in_their_order(model, tmp_path):
    source = write_photos(tmp_path / "photos", SEEDS)
    report = build(model, source, tmp_path / "index", settings={"dtype": "float32"})
    found = read(tmp_path / "index")
    paths = sorted(f"{tmp_path}/photos/{name}" for name in SEEDS)
    assert found.images["name"].to_pylist() == paths
    np.testing.assert_allclose(found.vectors["images"], model.embed_images(paths), atol=1e-6)
    photos = [open(path, "rb").read() for path in paths]
    assert list_thumbnails(found) == [make_thumbnail(photo, 256) for photo in photos]
    assert (report.images, report.embedded, report.removed, report.broken) == (13, 13, 0, 0)


def test_growing_equals_building_whole(model, tmp_path):
    folder, some = tmp_path / "photos", {name: SEEDS[name] for name in list(SEEDS)[3:9]}
    source = write_photos(folder, some)
    build(model, source, tmp_path / "grown")
    write_photos(folder, SEEDS)
    for name in some:  # writing them again changed their times
        os.utime(folder / name, ns=(10**18, 10**18))
    build(model, source, tmp_path / "grown")
    (folder / "a/00.jpg").write_bytes(encode_photo(99))  # changed
    (folder / "b/05.jpg").unlink()  # gone
    write_photos(folder, {"c/new.jpg": 50})
    report = build(model, source, tmp_path / "grown")
    assert (report.images, report.embedded, report.removed) == (13, 2, 2)
    build(model, source, tmp_path / "whole")
    assert_same(tmp_path / "grown", tmp_path / "whole")
    left = sorted(path.name for path in (tmp_path / "grown").iterdir())
    assert left == ["000003", "index.json"]


def test_captions_grow_too_and_each_is_embedded_once(model, tmp_path, monkeypatch):
    table = write_table(tmp_path / "photos", 6)
    build(model, table, tmp_path / "grown")
    write_table(tmp_path / "photos", 9)
    embedded, embed = [], type(model).embed_texts

    def embed_and_note(self, texts):
        embedded.extend(texts)
        return embed(self, texts)

    monkeypatch.setattr(type(model), "embed_texts", embed_and_note)
    with open(table, "a") as file:
        file.write("00.jpg,a second red dog,2000,\n")
    report = build(model, table, tmp_path / "grown")
    assert embedded == ["a second red dog"] and report.captions == 6
    found = read(tmp_path / "grown")
    assert found.captions["text"].to_pylist() == [TEXTS[0], "a second red dog", *TEXTS[1:]]
    assert found.images["captions"].to_pylist()[:6] == [[0, 1], [2], [3], [4], [5], [0]]
    build(model, table, tmp_path / "whole")
    assert_same(tmp_path / "grown", tmp_path / "whole")


def test_a_killed_run_continues_and_equals_one_that_was_not(model, tmp_path, monkeypatch):
    table = write_table(tmp_path / "photos", 14)
    build(model, table, tmp_path / "whole")
    append = PendingRows.append
    killed = 0
    for _ in range(20):
        left = 1

        def append_once(self, *rows):
            nonlocal left
            if not left:
                raise KeyboardInterrupt
            left -= 1
            append(self, *rows)

        monkeypatch.setattr(PendingRows, "append", append_once)
        try:
            build(model, table, tmp_path / "killed")
        except KeyboardInterrupt:
            killed += 1
            with pytest.raises(UserError, match="is not finished: the command that builds it"):
                load(tmp_path / "killed", model)
            continue
        break
    assert killed == 5  # four batches of images and two of captions, one a run
    assert_same(tmp_path / "killed", tmp_path / "whole")


def test_a_run_that_ended_before_it_wrote_anything_is_no_other_folder(model, tmp_path):
    source = write_photos(tmp_path / "photos", {"1.jpg": 1})
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "index.json.partial").touch()
    assert build(model, source, tmp_path / "index").images == 1


@pytest.mark.parametrize("before", ["write_info", "remove_others"])
def test_a_run_that_ends_between_two_steps_is_mended(model, tmp_path, monkeypatch, before):
    source = write_photos(tmp_path / "photos", SEEDS)
    build(model, source, tmp_path / "index")
    write_photos(tmp_path / "photos", {"z.jpg": 77})
    calls = 0

    def interrupt(*given):
        nonlocal calls
        calls += 1
        if calls == 2:  # the first is at the beginning of a run
            raise KeyboardInterrupt
        kept(*given)

    kept = getattr(folder_writer, before)
    monkeypatch.setattr(folder_writer, before, interrupt)
    with pytest.raises(KeyboardInterrupt):
        build(model, source, tmp_path / "index")
    assert len(load(tmp_path / "index", model)) == (13 if before == "write_info" else 14)
    monkeypatch.setattr(folder_writer, before, kept)
    assert build(model, source, tmp_path / "index").embedded == 0
    build(model, source, tmp_path / "whole")
    assert_same(tmp_path / "index", tmp_path / "whole")
    assert len([path for path in (tmp_path / "index").iterdir() if path.is_dir()]) == 1


def test_nothing_new_changes_nothing(model, tmp_path):
    table = write_table(tmp_path / "photos", 5)
    build(model, table, tmp_path / "index", metadata=MetadataTable(table))

    def list_times():
        return {path: path.stat().st_mtime_ns for path in (tmp_path / "index/000001").iterdir()}

    times = list_times()
    report = build(model, table, tmp_path / "index", metadata=MetadataTable(table))
    assert report.embedded == 0
    assert list_times() == times
    (tmp_path / "photos/photos.csv").write_text(
        (tmp_path / "photos/photos.csv").read_text().replace("2001", "1901")
    )
    report = build(model, table, tmp_path / "index", metadata=MetadataTable(table))
    assert report.embedded == 0 and report.described == 5
    years = read(tmp_path / "index").metadata["year"].to_pylist()
    assert years == [2000, 1901, 2002, 2003, 2004]


def test_images_in_shards_are_told_by_their_bytes(model, tmp_path):
    def write(seeds):
        members = [(f"{n:03d}.jpg", encode_photo(seed)) for n, seed in enumerate(seeds)]
        members += [(f"{n:03d}.txt", TEXTS[n % 5].encode()) for n in range(len(seeds))]
        write_tar(tmp_path / "pairs-0.tar", sorted(members))

    write([1, 2, 3])
    build(model, f"{tmp_path}/pairs-*.tar", tmp_path / "index")
    write([1, 9, 3, 4])
    report = build(model, f"{tmp_path}/pairs-*.tar", tmp_path / "index")
    assert (report.images, report.embedded, report.removed) == (4, 2, 1)
    found = read(tmp_path / "index")
    assert found.images["name"].to_pylist() == [f"pairs-0.tar: {n:03d}" for n in range(4)]
    build(model, f"{tmp_path}/pairs-*.tar", tmp_path / "whole")
    assert_same(tmp_path / "index", tmp_path / "whole")


def test_shards_of_one_name_are_not_mixed_up(model, tmp_path):
    for name, seed in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        members = [("0.jpg", encode_photo(seed)), ("0.txt", b"a dog")]
        write_tar(tmp_path / name / "x.tar", members)
    build(model, f"{tmp_path}/*/x.tar", tmp_path / "index")
    found = read(tmp_path / "index")
    assert found.images["name"].to_pylist() == ["x.tar: 0", "x.tar: 0 (2)"]
    assert len(set(list_thumbnails(found))) == 2


def test_names_of_classes_are_a_column(model, tmp_path):
    write_photos(tmp_path, {"cat/1.jpg": 1, "dog/1.jpg": 2, "dog/2.jpg": 3})
    source, node = open_source(str(tmp_path), "folder")
    made_by = {"model": "nowhere", "source": node}
    index_building.IndexBuilder(model, tmp_path / "index", made_by).build(source)
    assert read(tmp_path / "index").metadata["label"].to_pylist() == ["cat", "dog", "dog"]


def test_broken_images_are_named_and_left_out_until_they_are_whole(model, tmp_path, caplog):
    source = write_photos(tmp_path / "photos", {f"{n}.jpg": n for n in range(5)})
    (tmp_path / "photos/1.jpg").write_bytes(b"no image")
    (tmp_path / "photos/3.jpg").write_bytes(encode_photo(3)[:-300])
    report = build(model, source, tmp_path / "index")
    assert (report.images, report.broken) == (3, 2)
    assert "photos/1.jpg: the image cannot be opened" in caplog.text
    assert "photos/3.jpg: " in caplog.text and "image file is truncated" in caplog.text
    write_photos(tmp_path / "photos", {"1.jpg": 1})
    report = build(model, source, tmp_path / "index")
    assert (report.images, report.embedded, report.broken) == (4, 1, 1)
    for n in range(5):
        (tmp_path / f"photos/{n}.jpg").write_bytes(b"no image")
    with pytest.raises(UserError, match="none of 5 images can be used"):
        build(model, source, tmp_path / "index")


def test_another_model_or_source_into_the_folder_is_refused(model, tmp_path):
    source = write_photos(tmp_path / "photos", {"1.jpg": 1})
    build(model, source, tmp_path / "index")
    before = (tmp_path / "index/index.json").read_bytes()
    with pytest.raises(UserError, match="dtype is 'float16' there and 'float32' now"):
        build(model, source, tmp_path / "index", settings={"dtype": "float32"})
    other = write_photos(tmp_path / "others", {"2.jpg": 1})
    with pytest.raises(UserError, match="has 1 images, .*photos/1.jpg, and --source has none of"):
        build(model, other, tmp_path / "index")
    assert len(load(tmp_path / "index", model)) == 1
    write_info(tmp_path / "index", json.loads(before) | {"weights": "others"})
    with pytest.raises(UserError, match="weights is 'others' there"):
        build(model, source, tmp_path / "index")
    with pytest.raises(UserError, match="photos holds other files; give another --output"):
        build(model, source, tmp_path / "photos")


def test_two_processes_do_not_write_one_index(model, tmp_path):
    source = write_photos(tmp_path / "photos", {"1.jpg": 1})
    build(model, source, tmp_path / "index")
    with lock_folder(tmp_path / "index"):
        with pytest.raises(UserError, match="another process is writing this index"):
            build(model, source, tmp_path / "index")
    build(model, source, tmp_path / "index")


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "is not JSON"),
        ('{"format": 7}', "has format 7 of a search index; this version, .* reads up to 2"),
        ('{"format": 2}', "lacks model, weights"),
    ],
)
def test_a_damaged_index_is_told(model, tmp_path, content, message):
    (tmp_path / "index.json").write_text(content)
    with pytest.raises(UserError, match=message):
        load(tmp_path, model)


def test_a_damaged_generation_is_told(model, tmp_path):
    with pytest.raises(UserError, match="is no index .* big_align.tools.index writes one"):
        load(tmp_path, model)
    build(model, write_photos(tmp_path / "photos", {"1.jpg": 1, "2.jpg": 2}), tmp_path / "index")
    assert read_info(tmp_path / "index")["generation"] == 1
    for name in ("images.npy", "thumbnails.bin", "images.parquet"):
        path = tmp_path / "index/000001" / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-9])
        with pytest.raises(UserError, match="cannot be read .*; remove the index and build it"):
            load(tmp_path / "index", model)
        path.write_bytes(whole)
    assert len(load(tmp_path / "index", model)) == 2


def test_an_embedding_that_is_not_finite_ends_the_building(tmp_path):
    places = {kind: np.arange(2) for kind in KINDS}
    pending = {kind: PendingRows(tmp_path, kind, 3, "float16") for kind in KINDS}
    for kind, value in zip(KINDS, (1.0, np.inf), strict=True):
        pending[kind].append([["a", ""], ["b", ""]], np.array([[1.0] * 3, [value] * 3]))
    drafted = generations.draft([], ["a", "b"], pa.table({"(row)": []}))
    with pytest.raises(UserError, match=r"000001/captions.npy: row 1 is not finite"):
        generations.write(tmp_path / "000001", drafted, None, pending, places)


def test_a_table_of_files_and_captions_alone_is_indexed_and_brought_up_to_date(model, tmp_path):
    write_photos(tmp_path, {f"{n}.jpg": n for n in range(3)})
    path = tmp_path / "pairs.csv"
    path.write_text("filepath,title\n" + "".join(f"{n}.jpg,{TEXTS[n]}\n" for n in range(3)))
    for _ in range(2):
        report = build(model, str(path), tmp_path / "index", metadata=MetadataTable(str(path)))
        assert (report.images, report.described) == (3, 3)
    assert read_info(tmp_path / "index")["generation"] == 1
    assert load(tmp_path / "index", model).search("a dog on grass", k=1)[0].name.endswith(".jpg")


def test_a_builder_that_waited_goes_on_from_what_another_has_built(model, tmp_path):
    source = write_photos(tmp_path / "photos", {"a.jpg": 1, "b.jpg": 2})
    opened, node = open_source(source)
    made_by = {"model": "nowhere", "source": node}
    early = IndexBuilder(model, tmp_path / "index", made_by)  # there is no index yet
    build(model, source, tmp_path / "index", captions=False)
    assert early.build(opened).embedded == 0
    write_photos(tmp_path / "photos", {"c.jpg": 3})
    early = IndexBuilder(model, tmp_path / "index", made_by)
    build(model, source, tmp_path / "index", captions=False)
    assert early.build(open_source(source)[0]).embedded == 0
    assert len(read(tmp_path / "index").images) == 3


def test_an_index_that_is_updated_while_it_is_loaded_is_loaded(model, tmp_path, monkeypatch):
    source, folder = write_photos(tmp_path / "photos", {"a.jpg": 1}), tmp_path / "index"
    build(model, source, folder)
    inner, updates = index_folder.read_generation, iter([True])

    def read_late(path, files):
        if next(updates, False):
            write_photos(tmp_path / "photos", {"b.jpg": 2})
            build(model, source, folder)
        return inner(path, files)

    monkeypatch.setattr(index_folder, "read_generation", read_late)
    found = load(folder, model)
    assert len(found) == 2 and found.info["generation"] == 2
    # What a search needs may be loaded later, and be gone by then.
    found.info["search"]["images"] = {"method": "scann"} | dict.fromkeys(ScannSettings._fields, 1)
    found.info["generation"] = 1
    with pytest.raises(UserError, match="has been updated since it was loaded: load it again"):
        found.warm()
