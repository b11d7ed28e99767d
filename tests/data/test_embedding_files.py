"""Folders of embeddings read as one array, and damage to them is named."""

import json
import os
import shutil

import numpy as np
import pytest

from big_align.core.errors import UserError
from big_align.data.precomputed import shard_files
from big_align.data.precomputed.embedding_files import ClusterFolder, EmbeddingFolder
from big_align.data.precomputed.shard_files import Shard
from big_align.data.sources.array_source import ArraySource
from tests.embedding_folder import write_embeddings

COUNTS = (5, 0, 3, 7)


@pytest.fixture
def values():
    return np.random.default_rng(0).normal(size=(15, 4)).astype(np.float16)


@pytest.fixture
def folder(tmp_path, values):
    return write_embeddings(tmp_path / "embeddings", values, COUNTS)


def test_any_stretch_of_the_folder_is_that_of_the_array(folder, values):
    rows = EmbeddingFolder(folder)
    assert (rows.count, rows.dim, rows.absent) == (15, 4, 0)
    for first in range(16):
        for end in range(first, 16):
            np.testing.assert_array_equal(rows.read(first, end), values[first:end])
    chosen = np.random.default_rng(1).permutation(15)[:9]
    np.testing.assert_array_equal(rows.take(chosen), values[chosen])
    assert rows.take(np.zeros(0, np.int64)).shape == (0, 4)


def test_some_shards_read_as_those_alone(folder, values):
    rows = EmbeddingFolder(folder)
    part = rows.part([rows.shards[0], rows.shards[3]])
    np.testing.assert_array_equal(part.read(0, 12), np.concatenate([values[:5], values[8:]]))
    assert part.name(5) == "shard-3.tar: key 8" and rows.name(5) == "shard-2.tar: key 5"
    assert rows.count == 15


def test_keys_stand_in_the_order_of_the_rows(folder):
    rows = EmbeddingFolder(folder)
    keys = [key for shard in rows.shards if shard.count for key in rows.keys(shard)]
    assert keys == [f"key {number}" for number in range(15)]


def test_rows_that_are_absent_are_counted_from_their_keys(tmp_path, values):
    absent = [0, 1, 4, 9, 14]
    values[absent] = 0
    rows = EmbeddingFolder(write_embeddings(tmp_path / "e", values, COUNTS))
    assert rows.absent == 5
    assert rows.keys(rows.shards[0]) == ["", "", "key 2", "key 3", ""]


@pytest.mark.parametrize("sizes", [(15,), (1,) * 15, (4, 4, 4, 3), (0, 6, 0, 9)])
def test_shards_are_cut_out_of_pieces_of_any_size(values, sizes):
    shards = [Shard(f"s{i}", f"f{i}", count) for i, count in enumerate(COUNTS)]
    pieces = np.split(values, np.cumsum(sizes)[:-1])
    cut = list(shard_files.cut_in_shards(iter(pieces), shards))
    assert [shard for shard, _ in cut] == [shards[0], shards[2], shards[3]]
    assert [len(rows) for _, rows in cut] == [5, 3, 7]
    np.testing.assert_array_equal(np.concatenate([rows for _, rows in cut]), values)


def test_shards_of_one_name_are_told_apart():
    names = ["a/x.tar", "b/x.tar", "x y (é).csv", "b/x.tar"]
    pixels = np.zeros((1, 2, 2, 3), np.uint8)
    source = ArraySource(pixels, [[]])
    source.shard_sizes, source.shard_name = np.array([1, 2, 3, 4]), lambda i: names[i]
    shards = shard_files.list_shards(source)
    assert [shard.name for shard in shards] == ["a/x.tar", "b/x.tar", "x y (é).csv", "b/x.tar (2)"]
    assert len({shard.file for shard in shards}) == 4
    assert all(shard.file.isascii() and "/" not in shard.file for shard in shards)


def test_a_key_of_any_bytes_is_kept_and_an_end_of_line_is_refused():
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert shard_files.join_keys([name, "", "ü"]) == b"caf\xe9\n\n" + "ü\n".encode()
    with pytest.raises(UserError, match="end of line"):
        shard_files.join_keys(["a", "b\nc"])


def test_a_half_written_shard_does_not_count(tmp_path, monkeypatch):
    shard = Shard("s", "f", 3)
    monkeypatch.setattr(np, "save", lambda file, rows: file.write(b"half") and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        shard_files.write_shard(tmp_path, shard, ".npy", np.zeros((3, 2)), b"a\nb\nc\n")
    assert not shard_files.has_shard(tmp_path, shard, ".npy")
    assert [path.name for path in tmp_path.iterdir()] == ["f.keys"]


def test_two_runs_may_write_the_same_shard_at_the_same_time(tmp_path, monkeypatch):
    """One is half way when the other begins and ends; and one is killed half way."""
    shard, rows = Shard("s", "f", 3), np.arange(6.0).reshape(3, 2)
    inner, half = np.save, tmp_path / "half"

    def save(file, array):
        monkeypatch.setattr(np, "save", inner)
        file.write(b"half")
        file.flush()
        shutil.copy(file.name, half)
        shard_files.write_shard(tmp_path, shard, ".npy", rows, b"a\nb\nc\n")
        file.seek(0)
        inner(file, array)

    monkeypatch.setattr(np, "save", save)
    shard_files.write_shard(tmp_path, shard, ".npy", rows, b"a\nb\nc\n")
    np.testing.assert_array_equal(np.load(tmp_path / "f.npy"), rows)
    half.rename(tmp_path / "f.npy.0.partial")
    shard_files.claim_folder(tmp_path, {"made_by": {}}, write=True)
    assert (tmp_path / "f.npy.0.partial").exists()  # somebody may be writing to it
    os.utime(tmp_path / "f.npy.0.partial", (0, 0))
    shard_files.claim_folder(tmp_path, {"made_by": {}}, write=True)
    assert shard_files.list_missing(tmp_path, ".npy", [shard]) == []
    assert {path.name for path in tmp_path.iterdir()} == {"f.keys", "f.npy", "index.json"}


def cut_array(folder):
    with open(folder / "f2.npy", "r+b") as file:
        file.truncate(130)


def cut_keys(folder):
    (folder / "f3.keys").write_text("key 8\n")


def replace_array(folder):
    np.save(folder / "f0.npy", np.zeros((5, 3), np.float16))


def change_index(**entries):
    def change(folder):
        index = json.loads((folder / "index.json").read_text()) | entries
        kept = {k: v for k, v in index.items() if v is not None}
        (folder / "index.json").write_text(json.dumps(kept))

    return change


DAMAGES = [
    (cut_array, "f2.npy is missing, cut short or no array"),
    (cut_keys, "f3.keys has 1 lines, but the shard 7 examples"),
    (replace_array, r"f0.npy is float16 \[5, 3\], but index.json says float16 \[5, 4\]"),
    (lambda f: (f / "f3.npy").unlink(), "lacks 1 of 4 shards, f3.npy the first"),
    (lambda f: (f / "f3.keys").unlink(), "f3.keys is missing"),
    (lambda f: (f / "index.json").unlink(), "has no index.json"),
    (lambda f: (f / "index.json").write_text("{"), "index.json is not JSON"),
    (lambda f: (f / "index.json").write_text("[]"), "holds no object; it is not as it was"),
    (change_index(format=2), "has format 2 of a folder of embeddings or clusters, written by"),
    (change_index(dim=None), "lacks dim: the folder holds something else"),
    (change_index(dim=5), r"but index.json says float16 \[5, 5\]"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_damage_is_named(folder, damage, message):
    damage(folder)
    with pytest.raises(UserError, match=message):
        EmbeddingFolder(folder)


def test_a_folder_of_embeddings_is_none_of_clusters(folder):
    with pytest.raises(UserError, match="lacks k, labels_per_image"):
        ClusterFolder(folder)


def test_a_folder_that_was_made_otherwise_is_not_continued(tmp_path):
    index = {"dim": 2, "shards": [], "made_by": {"weights": "a", "model": "here"}}
    shard_files.claim_folder(tmp_path, index, write=True)
    moved = index | {"made_by": {"weights": "a", "model": "there"}}
    shard_files.claim_folder(tmp_path, moved, write=True, free=("model",))
    other = index | {"dim": 3, "made_by": {"weights": "b", "model": "here"}}
    with pytest.raises(UserError, match="dim is 2 there and 3 now; made_by.weights is 'a' there"):
        shard_files.claim_folder(tmp_path, other, write=True)


def test_the_name_of_a_shard_may_be_of_any_characters(tmp_path, values):
    """Such as the space of a Mac's screenshots, or bytes that are not UTF-8."""
    folder = write_embeddings(tmp_path / "embeddings", values, COUNTS)
    index = json.loads((folder / "index.json").read_text())
    for name in ("1.23.45\u202fPM.png", "日本\u3000語", "caf\udce9"):
        index["shards"][0]["name"] = name
        (folder / "index.json").unlink()
        content = {field: value for field, value in index.items() if field != "format"}
        shard_files.claim_folder(folder, content, write=True)
        assert EmbeddingFolder(folder).shards[0].name == name
        shard_files.claim_folder(folder, content, write=True)  # and is continued
