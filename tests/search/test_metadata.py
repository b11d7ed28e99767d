"""Rows of a table find their images, however these are written."""

import argparse
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from big_align.errors import UserError
from big_align.search.metadata import MetadataTable, add_labels
from big_align.tools import index

NAMES = ["photos/a.jpg", "photos/b.jpg", "photos/c.jpg"]


def test_paths_are_relative_to_the_table_or_to_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "table.csv").write_text(
        f"file_name,year,caption\n./b.jpg,2001,x\nphotos/c.jpg,2002,y\n{tmp_path}/photos/a.jpg,,z\n"
        "b.jpg,1900,again\n"
    )
    for path in ("photos/table.csv", f"{tmp_path}/photos/table.csv"):
        found, count = MetadataTable(path).align(NAMES, NAMES)
        assert found.to_pydict() == {"year": [None, 2001, 2002]} and count == 3
    found, count = MetadataTable("photos/table.csv").align(["none.jpg", *NAMES], ["", *NAMES])
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
    found, count = MetadataTable(write(tmp_path, ending)).align(["x: a", "x: b"], ["a", "b"])
    assert found.to_pydict() == {"year": [2, 1], "place": ["z", "x;y"]} and count == 2


@pytest.mark.parametrize("name, chosen", [("key", None), ("number", "number")])
def test_keys_that_look_like_numbers_are_texts(tmp_path, name, chosen):
    path = tmp_path / "table.csv"
    path.write_text(f"{name},year\n000000012,2020\n7,2021\n")
    found, count = MetadataTable(str(path), chosen).align(["x", "y"], ["000000012", "7"])
    assert found["year"].to_pylist() == [2020, 2021] and count == 2


@pytest.mark.parametrize(
    "name, content, arguments",
    [
        ("captions.txt", "image,caption\na.jpg,x\n", {}),
        ("bars.csv", "image|caption\na.jpg|x\n", {"delimiter": "|"}),
        ("torn.csv", "image,caption\na.jpg,x,y\n", {"skip_bad_lines": True}),
    ],
)
def test_a_table_that_gives_images_need_not_give_metadata(tmp_path, name, content, arguments):
    path = tmp_path / name
    path.write_text(content)
    node = {"name": "csv", "path": str(path)} | arguments
    given = argparse.Namespace(metadata=None, metadata_key=None)
    assert index.read_metadata(given, node) is None
    with pytest.raises(UserError, match="--metadata"):
        index.read_metadata(argparse.Namespace(metadata=str(path), metadata_key=None), node)


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
    assert MetadataTable(str(path), "a").align(["1"], [""])[0].to_pydict() == {"b": [2]}
    with pytest.raises(UserError, match="has no column 'c'; it has 'a', 'b'"):
        MetadataTable(str(path), "c")
    with pytest.raises(UserError, match="must end in .csv, .tsv, .jsonl, .json, .parquet"):
        MetadataTable(str(tmp_path / "table.xls"))
    with pytest.raises(UserError, match="none.csv cannot be read"):
        MetadataTable(str(tmp_path / "none.csv"))
    path.write_text("a,b\n1,2,3\n")
    with pytest.raises(UserError, match="table.csv cannot be read: .*2 columns"):
        MetadataTable(str(path))


def test_a_table_of_files_and_captions_alone_gives_rows_without_columns(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("filepath,title\na.jpg,x\nb.jpg,y\n")
    found, count = MetadataTable(str(path)).align([f"{tmp_path}/b.jpg", "c.jpg"], ["", ""])
    assert len(found) == 2 and count == 1
    assert add_labels(found, ["dog", None])["label"].to_pylist() == ["dog", None]


def test_the_own_table_of_a_source_names_images_by_their_files(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("filepath,title,name,price\na.jpg,x,chair,3\nb.jpg,y,table,5\n")
    names = [f"{tmp_path}/b.jpg", f"{tmp_path}/a.jpg"]
    given = argparse.Namespace(metadata=None, metadata_key=None)
    own = index.read_metadata(given, {"name": "csv", "path": str(path)})
    found, count = own.align(names, names)
    assert found.to_pydict() == {"name": ["table", "chair"], "price": [5, 3]} and count == 2
    other = MetadataTable(str(path))
    assert other.align(names, names)[1] == 0 and other.key == "name"


def test_two_columns_of_one_name_are_told(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("file,year,year\na.jpg,1,2\n")
    with pytest.raises(UserError, match="has the column 'year' twice"):
        MetadataTable(str(path))


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
    found, _ = MetadataTable(str(tmp_path / "table.parquet")).align(["a", "b", "c"], ["", "", ""])
    pq.write_table(found, tmp_path / "kept.parquet")
    assert found.equals(pq.read_table(tmp_path / "kept.parquet"))
    assert found["number"].to_pylist() == [1.5, None, None]
    assert found["half"].to_pylist() == [1, None, 3]
    assert all(hasattr(each, "year") for each in found["time"].to_pylist() if each)
