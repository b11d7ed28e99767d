"""Rows of a table find their images, however these are written."""

import argparse
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from indexes import encode_photo, write_photos

from big_align.config.components.source_flags import open_source
from big_align.core.errors import UserError
from big_align.tools import index
from big_align.use.search.metadata import MetadataTable, add_labels, read_source
from big_align.use.search.source_entries import SourceEntries
from big_align.use.search.stores.store import IndexEntry
from tests.data.samples import write_tar

NAMES = ["photos/a.jpg", "photos/b.jpg", "photos/c.jpg"]


def make_entries(names, keys=None, shards=None):
    """Images of an index with these names."""
    keys, shards = keys or names, shards or ["shard"] * len(names)
    parts = enumerate(zip(names, keys, shards, strict=True))
    return [IndexEntry(name, key, shard, n, "", [], None) for n, (name, key, shard) in parts]


def list_entries(source):
    """The images of a source, as an index has them."""
    entries = SourceEntries(source, 0)
    (block,) = entries.list_blocks(None)
    return [loaded.entry for loaded in entries.load(block, lambda *_: False)]


def open_images(path, *arguments):
    return open_source(str(path), arguments=arguments, captions=True, needs_texts=False)[0]


def test_paths_are_relative_to_the_table_or_to_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "table.csv").write_text(
        f"file_name,year,caption\n./b.jpg,2001,x\nphotos/c.jpg,2002,y\n{tmp_path}/photos/a.jpg,,z\n"
        "b.jpg,1900,again\n"
    )
    for path in ("photos/table.csv", f"{tmp_path}/photos/table.csv"):
        found, count = MetadataTable(path).align(make_entries(NAMES))
        assert found.to_pydict() == {"year": [None, 2001, 2002]} and count == 3
    entries = make_entries(["none.jpg", *NAMES], ["", *NAMES])
    found, count = MetadataTable("photos/table.csv").align(entries)
    assert found["year"].to_pylist() == [None, None, 2001, 2002] and count == 3


def write(folder, ending):
    table = pa.table({"key": ["b", "a"], "year": [1, 2], "place": ["x;y", "z"]})
    path = folder / f"table.{ending}"
    if ending == "parquet":
        nested = table.append_column("more", pa.array([[1], [2]]))
        pq.write_table(nested.append_column("jpg", pa.array([b"1", b"2"])), path)
    elif ending == "jsonl":
        path.write_text("".join(f"{row}\n".replace("'", '"') for row in table.to_pylist()))
    elif ending == "json":
        rows = table.to_pylist()
        path.write_text(json.dumps([rows[0] | {"more": [1]}, rows[1]]))
    else:
        part = {"csv": ",", "tsv": "\t"}[ending]
        rows = [table.column_names, *(row.values() for row in table.to_pylist())]
        path.write_text("\n".join(part.join(map(str, row)) for row in rows))
    return str(path)


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "json", "parquet"])
def test_every_kind_of_table_gives_the_same(tmp_path, ending):
    entries = make_entries(["x: a", "x: b"], ["a", "b"])
    found, count = MetadataTable(write(tmp_path, ending)).align(entries)
    assert found.to_pydict() == {"year": [2, 1], "place": ["z", "x;y"]} and count == 2


IDS = ["007", "7", "00501", "1e3", "10000000000000000003", "2021-05-03"]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "json", "parquet"])
@pytest.mark.parametrize("name, chosen", [("key", None), ("number", "number")])
def test_ids_that_look_like_numbers_are_texts_in_every_kind_of_table(
    tmp_path, ending, name, chosen
):
    rows = [{name: text, "id": text, "year": 2000 + n} for n, text in enumerate(IDS)]
    path = tmp_path / f"table.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif ending == "csv":
        lines = [",".join(map(str, row)) for row in (rows[0], *(row.values() for row in rows))]
        path.write_text("\n".join(lines))
    else:
        lines = list(map(json.dumps, rows))
        path.write_text("\n".join(lines) if ending == "jsonl" else f"[{','.join(lines)}]")
    entries = make_entries([f"x: {text}" for text in IDS], IDS)
    found, count = MetadataTable(str(path), chosen).align(entries)
    assert found.to_pydict() == {"id": IDS, "year": list(range(2000, 2006))} and count == len(IDS)


def test_columns_without_a_name_as_pandas_writes_its_index_are_left_out(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(",,key,year\n0,0,a,2000\n1,1,b,2001\n")
    found, _ = MetadataTable(str(path)).align(make_entries(["b", "a"]))
    assert found.to_pydict() == {"year": [2001, 2000]}


def test_categories_of_pandas_are_texts(tmp_path):
    kinds = pa.array(["007", "7", None]).dictionary_encode()
    pq.write_table(pa.table({"key": ["a", "b", "c"], "kind": kinds}), tmp_path / "t.parquet")
    found, _ = MetadataTable(str(tmp_path / "t.parquet")).align(make_entries(["a", "b", "c"]))
    assert found.to_pydict() == {"kind": ["007", "7", None]}


def test_a_row_that_names_several_images_describes_none_and_is_told(tmp_path, caplog):
    path = tmp_path / "table.csv"
    path.write_text("key,place\n0,Bern\n1,Rome\nb/0,Oslo\n3,Paris\n1,Rome\n")
    names = ["a.tar: 0", "a.tar: 1", "b.tar: 0"]
    entries = make_entries(names, ["0", "1", "0"], ["a.tar", "a.tar", "b.tar"])
    found, count = MetadataTable(str(path)).align(entries)
    assert found["place"].to_pylist() == [None, "Rome", "Oslo"] and count == 2
    shared, unused = (record.getMessage() for record in caplog.records)  # equal rows are no fault
    assert "1 rows name several images each, and so describe none: line 2 ('0'); '0' is" in shared
    assert "as in a/0" in shared
    assert "1 of 5 rows name no image" in unused and "line 5 ('3')" in unused
    caplog.clear()
    path.write_text("key,place\n1,Rome\n1,Oslo\n")
    assert MetadataTable(str(path)).align(entries)[0]["place"].to_pylist() == [None, "Rome", None]
    (record,) = caplog.records
    assert "1 images have rows that differ, such as line 2 and line 3" in record.getMessage()


def test_a_table_without_rows_of_the_images_advises_another_column(tmp_path, caplog):
    path = tmp_path / "table.csv"
    path.write_text("name,place\nchair,Bern\n")
    found, count = MetadataTable(str(path)).align(make_entries(["photos/a.jpg"], ["a"]))
    assert found["place"].to_pylist() == [None] and count == 0
    (record,) = caplog.records
    assert "in the column 'name': line 2 ('chair')" in record.getMessage()
    assert "'photos/a.jpg', with the key 'a'; --metadata_key" in record.getMessage()


OWN = {
    "captions.txt": ("image,caption,year\n", "{n}.jpg,x,{year}\n", ("name", "csv")),
    "bars.csv": ("image|caption|year\n", "{n}.jpg|x|{year}\n", ()),
    "alt.csv": ("pic,name,alt,year\n", "{n}.jpg,chair,x,{year}\n", ("image=pic", "caption=alt")),
    "torn.csv": ("image,caption,year\n9.jpg,x,y,z\n", "{n}.jpg,x,{year}\n",
                 ("skip_bad_lines=True",)),
    "list.jsonl": ("", '{{"image": "{n}.jpg", "caption": "x", "year": {year}}}\n', ()),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("folder", ["", "images/"])
def test_the_table_that_gives_the_images_describes_each_wherever_it_is(tmp_path, name, folder):
    write_photos(tmp_path, {f"{folder}{n}.jpg": n for n in range(20)})
    start, line, given = OWN[name]
    rows = [line.format(n=n, year=2000 + n) for n in (3, 19, 4, 3, *range(5, 12))]
    (tmp_path / name).write_text(start + "".join(rows))
    kind = "csv" if name.endswith("txt") else None
    arguments = () if kind else given
    path = str(tmp_path / name)
    source = open_source(path, kind, arguments, captions=True, needs_texts=False)[0]
    entries = list_entries(source)
    found, count = read_source(source).align(entries)
    expected = [2000 + int(entry.name.split("/")[-1].split(".")[0]) for entry in entries]
    assert found["year"].to_pylist() == expected and count == len(entries) == 10
    left = read_source(source).align(entries[::-2])[0]
    assert left["year"].to_pylist() == expected[::-2]


def test_rows_of_the_source_that_differ_are_told(tmp_path, caplog):
    write_photos(tmp_path, {"a.jpg": 1, "b.jpg": 2})
    path = tmp_path / "t.csv"
    rows = ["a.jpg,x,1,u", "b.jpg,x,2,v", "a.jpg,y,1,u", "b.jpg,y,3,v"]
    path.write_text("\n".join(["image,caption,year,comment", *rows]))
    source = open_images(path)
    found, count = read_source(source).align(list_entries(source))
    assert found.to_pydict() == {"year": [1, 2], "comment": ["u", "v"]} and count == 2
    (record,) = caplog.records
    assert "1 images have rows that differ, such as line 3 and line 5" in record.getMessage()


def test_columns_beside_encoded_images_and_members_of_shards_describe_them(tmp_path):
    photos = [encode_photo(n) for n in range(5)]
    for part, numbers in enumerate(([0, 1, 2], [3, 4])):
        columns = {
            "image": [photos[n] if n != 1 else None for n in numbers],
            "caption": ["x"] * len(numbers), "id": [f"{n:03d}" for n in numbers],
            "year": [2000 + n for n in numbers], "box": [[n] for n in numbers],
        }  # fmt: skip
        pq.write_table(pa.table(columns), tmp_path / f"{part}.parquet", row_group_size=2)
    source = open_images(f"{tmp_path}/*.parquet")
    found, count = read_source(source).align(list_entries(source))
    assert found.to_pydict() == {
        "id": ["000", "002", "003", "004"],
        "year": [2000, 2002, 2003, 2004],
    }
    assert count == 4
    members = [
        (f"{n}.{ending}", data)
        for n, photo in enumerate(photos)
        for ending, data in (("jpg", photo), ("json", b'{"year": %d, "box": [1]}' % (2000 + n)))
    ]
    path = write_tar(tmp_path / "x.tar", members)
    columns = "columns=('json.year', 'json.box', 'json.none')"
    source = open_images(path, columns, "caption=")
    found, _ = read_source(source).align(list_entries(source))
    assert found["json.year"].to_pylist() == list(range(2000, 2005))
    assert read_source(open_images(path, "caption=")) is None


def test_labels_are_a_column_unless_the_table_has_one():
    table = pa.table({"row": [0, 1]})
    assert add_labels(table, [None, None]) is table
    labeled = add_labels(table, ["dog", None])
    assert labeled["label"].to_pylist() == ["dog", None]
    assert add_labels(labeled, ["a", "b"]) is labeled


def test_what_is_no_table_is_told(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="no column with a usual name of images.*--metadata_key="):
        MetadataTable(str(path))
    found, _ = MetadataTable(str(path), "a").align(make_entries(["1"]))
    assert found.to_pydict() == {"b": [2]}
    with pytest.raises(UserError, match="has no column 'c'; it has 'a', 'b'"):
        MetadataTable(str(path), "c")
    with pytest.raises(UserError, match="must end in .csv, .tsv, .jsonl, .json, .parquet"):
        MetadataTable(str(tmp_path / "table.xls"))
    for ending in ("csv", "json", "jsonl", "parquet"):
        with pytest.raises(UserError, match=f"none.{ending}"):
            MetadataTable(str(tmp_path / f"none.{ending}"))
    path.write_text("a,b\n1,2,3\n")
    with pytest.raises(UserError, match="table.csv, line 2 has 3 columns and the first line 2"):
        MetadataTable(str(path))


def test_a_table_of_files_and_captions_alone_gives_rows_without_columns(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("filepath,title\na.jpg,x\nb.jpg,y\n")
    entries = make_entries([f"{tmp_path}/b.jpg", "c.jpg"], ["", "c"])
    found, count = MetadataTable(str(path)).align(entries)
    assert len(found) == 2 and count == 1
    assert add_labels(found, ["dog", None])["label"].to_pylist() == ["dog", None]
    write_photos(tmp_path, {"a.jpg": 1, "b.jpg": 2})
    assert read_source(open_images(path)) is None


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_two_columns_of_one_name_are_told(tmp_path, ending):
    path = tmp_path / f"table.{ending}"
    path.write_text("file,year,year\na.jpg,1,2\n")
    if ending == "parquet":
        pq.write_table(pa.table([["a.jpg"], [1], [2]], ["file", "year", "year"]), path)
    with pytest.raises(UserError, match="has the column 'year' twice"):
        MetadataTable(str(path))


def test_what_the_source_cannot_tell_of_is_told_and_the_images_are_indexed(tmp_path, caplog):
    write_photos(tmp_path, {"a.jpg": 1})
    path = tmp_path / "table.csv"
    path.write_text("file,caption,year,year\na.jpg,x,1,2\n")
    given = argparse.Namespace(metadata=None, metadata_key=None)
    assert index.read_metadata(given, open_images(path)) is None
    assert "no metadata: " in caplog.text and "'year' twice" in caplog.text
    given.metadata_key = "file"
    with pytest.raises(UserError, match="--metadata_key .* give --metadata=FILE"):
        index.read_metadata(given, open_images(path))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_what_is_kept_equals_itself_after_it_is_written_and_read(tmp_path, unit):
    columns = {
        "key": ["a", "b", "c"],
        "time": pa.array([1, None, 10**9], pa.timestamp(unit)),
        "number": pa.array([1.5, float("nan"), None]),
        "clock": pa.array([45_000, None, 7], pa.time32("s")),
        "day": pa.array([86_400_000, None, 0], pa.date64()),
        "half": pa.array(np.float16([1, np.nan, 3])),
    }
    pq.write_table(pa.table(columns), tmp_path / "table.parquet")
    table = MetadataTable(str(tmp_path / "table.parquet"))
    found, _ = table.align(make_entries(["a", "b", "c"]))
    pq.write_table(found, tmp_path / "kept.parquet")
    assert found.equals(pq.read_table(tmp_path / "kept.parquet"))
    assert found["number"].to_pylist() == [1.5, None, None]
    assert found["half"].to_pylist() == [1, None, 3]
    assert all(hasattr(each, "year") for each in found["time"].to_pylist() if each)


def read_lines(folder, lines):
    (folder / "x.jsonl").write_text("\n".join(lines))
    return MetadataTable(str(folder / "x.jsonl")).align(make_entries(NAMES))[0].to_pydict()


def test_any_value_of_json_is_a_value_of_the_table(tmp_path):
    """Also integers that no column holds, and halves of surrogate pairs."""
    lines = [f'{{"key": "{name}", "n": {2**70}, "t\\ud83d": "x\\ude00"}}' for name in NAMES]
    assert read_lines(tmp_path, lines) == {"n": [str(2**70)] * 3, "t\\ud83d": ["x\\ude00"] * 3}


@pytest.mark.slow
def test_a_table_has_columns_not_names_without_end(tmp_path):
    with pytest.raises(UserError, match="x.jsonl has 6001 columns, .*; at most 5000 are read"):
        read_lines(tmp_path, [f'{{"key": "{n}", "c{n}": 1}}' for n in range(6000)])
    with pytest.raises(UserError, match="x.jsonl has 80000 objects with 4001 names .* and 160000"):
        read_lines(tmp_path, [f'{{"key": "{n}", "c{n % 4000}": 1}}' for n in range(80_000)])
    pq.write_table(pa.table({f"c{n}": [1] for n in range(5001)}), tmp_path / "x.parquet")
    (tmp_path / "x.csv").write_text(",".join(f"c{n}" for n in range(5001)) + "\n" + "1," * 5000)
    for ending in ("parquet", "csv"):
        with pytest.raises(UserError, match=f"x.{ending} has 5001 columns"):
            MetadataTable(str(tmp_path / f"x.{ending}"))
