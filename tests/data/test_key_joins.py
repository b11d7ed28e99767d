"""A row belongs to the one image that it names."""

import pytest

from big_align.data.tables.key_joins import ImageNames, join_rows

SHARDS = ImageNames(
    ["a.tar: 0", "a.tar: 1", "b.tar: 0", "b.tar: x/2", "b.tar: 0 (2)"],
    ["0", "1", "0", "x/2", "0"],
    ["a.tar", "a.tar", "b.tar", "b.tar", "b.tar (2)"],
)
GROUPS = ImageNames(
    ["a.parquet: row 0", "a.parquet: row 1", "b.parquet: row 0"],
    ["7", "8", "7"],
    ["a.parquet, row group 0", "a.parquet, row group 1", "b.parquet, row group 0"],
)


@pytest.mark.parametrize(
    "images, called, expected",
    [
        (SHARDS, "1", [1]),
        (SHARDS, "0", [0, 2, 4]),
        (SHARDS, "a/0", [0]),
        (SHARDS, "b.tar/0", [2]),
        (SHARDS, "b (2)/0", [4]),
        (SHARDS, "b.tar: 0 (2)", [4]),
        (SHARDS, "x/2", [3]),
        (SHARDS, "b/x/2", [3]),
        (SHARDS, "a/1", [1]),
        (SHARDS, "a/2", []),
        (SHARDS, "c/0", []),
        (SHARDS, "00", []),
        (SHARDS, "", []),
        (GROUPS, "7", [0, 2]),
        (GROUPS, "a/8", [1]),
        (GROUPS, "b.parquet/7", [2]),
        (GROUPS, "b.parquet: row 0", [2]),
    ],
)
def test_a_key_may_name_several_images_and_a_shard_with_it_one(images, called, expected):
    found = join_rows([called], "", images)
    described = [n for n, row in enumerate(found.rows) if row is not None]
    assert described == (expected if len(expected) == 1 else [])
    assert found.shared == ({0: expected} if len(expected) > 1 else {})
    assert found.unused == ([] if expected else [0])


@pytest.mark.parametrize(
    "names, expected",
    [
        (["data/a.jpg"], 0),
        (["data/images/a.jpg"], 0),
        (["data/Images/a.jpg"], 0),
        (["a.jpg"], 0),
        (["a.jpg", "data/images/a.jpg", "data/a.jpg"], 2),  # beside the table before all else
        (["a.jpg", "data/images/a.jpg"], 1),
        (["more/a.jpg", "data/more/a.jpg"], None),
    ],
)
def test_a_bare_name_is_looked_for_where_a_source_looks(names, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images = ImageNames(names, names, ["list"] * len(names))
    for folder in ("data", f"{tmp_path}/data"):
        found = join_rows(["./a.jpg"], folder, images)
        assert found.rows == [0 if n == expected else None for n in range(len(names))]
        assert found.unused == ([0] if expected is None else [])


def test_the_first_of_several_rows_of_an_image_counts():
    found = join_rows(["1", "x/2", "./1", "1", "a.tar: 1"], "", SHARDS)
    assert found.rows == [None, 0, None, 1, None]
    assert found.repeated == {1: [0, 3, 4]} and found.unused == [2]
