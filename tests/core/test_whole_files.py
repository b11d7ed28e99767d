"""Files that are whole or absent: after a failure, with several writers, for other users."""

import ast
import os
import stat

import numpy as np
import pytest

from big_align.core import whole_files
from big_align.core.errors import UserError
from big_align.core.whole_files import open_whole
from big_align.data.precomputed import shard_files, single_files
from big_align.data.precomputed.embedding_files import EmbeddingFolder
from big_align.data.shared import storage
from big_align.data.sources import shard_index
from big_align.data.sources.tar_source import TarSource
from big_align.data.text.vocabulary import write_vocabulary
from big_align.training.logs import line_files
from big_align.weights.arrays.safetensors_files import write_safetensors
from tests.data.samples import make_members, write_tar
from tests.embedding_folder import write_embeddings
from tests.manual import ROOT

PACKAGE = ROOT / "big_align"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_that_can_be_written_passes_and_its_folder_is_made(tmp_path):
    path = tmp_path / "new" / "folder" / "page.HTML"
    whole_files.check_file(str(path), endings=[".json", ".html"], overwrite=False)
    assert names(tmp_path) == ["new"] and names(path.parent) == []
    path.write_bytes(b"old")
    whole_files.check_file(str(path))
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("folder", {}, "folder is a folder; name a file in it"),
        ("file", dict(overwrite=False), "file is there already; --overwrite replaces it"),
        ("x.txt", dict(endings=[".json"]), "x.txt must end in .json"),
        ("x.txt", dict(endings=[".json", ".html"]), "x.txt must end in .json or .html"),
        ("file/x", {}, "file cannot be made: File exists"),
        ("file/x/y", {}, "file/x cannot be made: Not a directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_named_with_the_reason(tmp_path, name, settings, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"old")
    path = str(tmp_path / name)
    with pytest.raises(UserError) as told:
        whole_files.check_file(path, flag="--page", **settings)
    assert str(told.value).startswith(f"--page={path}") and message in str(told.value)
    assert names(tmp_path) == ["file", "folder"]


def test_a_folder_without_permission_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError, match=f"{tmp_path} cannot be written to"):
        whole_files.check_file(str(tmp_path / "x"))


def test_an_empty_path_is_the_current_folder(tmp_path):
    with pytest.raises(UserError, match="--output= is a folder"):
        whole_files.check_file("")


@pytest.mark.parametrize("before", [None, b"old"])
@pytest.mark.parametrize("error", [OSError("no space"), KeyboardInterrupt()])
@pytest.mark.parametrize("opened", [open_whole, lambda path: open_whole(path, sync=True)])
def test_a_failure_leaves_what_was_there(tmp_path, before, error, opened):
    path = tmp_path / "file"
    if before:
        path.write_bytes(before)
    with pytest.raises(type(error)), opened(path) as file:
        file.write(b"a part of the n")
        file.flush()
        raise error
    assert names(tmp_path) == ["file"] * bool(before)
    assert not before or path.read_bytes() == before


def test_a_reader_sees_the_old_content_until_the_new_is_whole(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with open_whole(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
        assert [each.name for each in tmp_path.glob("[!.]*")] == ["file"]  # a partial one is hidden
    assert path.read_bytes() == b"new" and names(tmp_path) == ["file"]


def test_of_two_writers_at_once_the_last_one_wins_with_all_of_its_content(tmp_path):
    path = tmp_path / "file"
    with open_whole(path) as one:
        one.write(b"one, ")
        one.flush()
        with open_whole(path) as other:
            other.write(b"the other")
        assert path.read_bytes() == b"the other"
        one.write(b"whole")
    assert path.read_bytes() == b"one, whole" and names(tmp_path) == ["file"]


def test_what_a_kill_has_left_is_removed_when_it_is_old(tmp_path):
    left, fresh = whole_files.name_partial(tmp_path / "f"), whole_files.name_partial(tmp_path / "f")
    for path in (left, fresh, tmp_path / "f"):
        path.write_bytes(b"half")
        os.utime(path, (0, 0))
    os.utime(fresh)
    whole_files.remove_leftovers(tmp_path)
    assert names(tmp_path) == sorted([fresh.name, "f"])


def write_index(path):
    tar = write_tar(path.parent / "a.tar", make_members(0))
    TarSource(str(tar), index_dir=str(path.parent / "made"))
    (made,) = (path.parent / "made").iterdir()
    made.rename(path)


def write_single(path):
    rows = EmbeddingFolder(write_embeddings(path.parent / "rows", np.ones((3, 2)), [2, 0, 1]))
    single_files.write_npy(rows, path, rows.keys)


WRITERS = {
    "index": write_index,
    "array": lambda path: shard_files.write_array(path, np.ones(3)),
    "single": write_single,
    "vocabulary": lambda path: write_vocabulary(["a"], str(path)),
    "weights": lambda path: write_safetensors(path, {"a": np.ones(3)}),
    "job": lambda path: storage.write_text(str(path), "a"),
}


@pytest.mark.parametrize("mask", [0o022, 0o077])
@pytest.mark.parametrize("name", WRITERS)
def test_who_may_read_a_file_is_the_users_choice(tmp_path, name, mask):
    before = os.umask(mask)
    try:
        WRITERS[name](tmp_path / "file.npy")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file.npy").stat().st_mode) == 0o666 & ~mask


def fail(*arguments, **named):
    raise OSError("no space")


def fail_at_the_second_shard(monkeypatch, method):
    """Makes a method of folders of embeddings fail, once it has given the first of two shards."""
    plain, given = getattr(EmbeddingFolder, method), []

    def give(self, shard):
        given.append(shard.file)
        return plain(self, shard) if set(given) == {"f0"} else fail()

    monkeypatch.setattr(EmbeddingFolder, method, give)


def fail_in_parquet(monkeypatch, folder):
    rows = EmbeddingFolder(folder / "rows")
    fail_at_the_second_shard(monkeypatch, "key_lines")
    single_files.write_parquet(rows, folder / "file", rows.keys)


def fail_in_npy(monkeypatch, folder):
    rows = EmbeddingFolder(folder / "rows")
    fail_at_the_second_shard(monkeypatch, "array")
    single_files.write_npy(rows, folder / "file", rows.keys)


def fail_in_index(monkeypatch, folder):
    monkeypatch.setattr(shard_index.np, "savez", fail)
    tar = write_tar(folder / "rows" / "a.tar", make_members(0))
    TarSource(str(tar), index_dir=str(folder))


def fail_in_lines(monkeypatch, folder):
    monkeypatch.setattr(os, "fsync", fail)
    line_files.keep_lines(folder / "file", lambda found: True)


@pytest.mark.parametrize("write", [fail_in_parquet, fail_in_npy, fail_in_index, fail_in_lines])
def test_a_writer_that_fails_leaves_the_old_file_alone(tmp_path, monkeypatch, write):
    write_embeddings(tmp_path / "rows", np.ones((3, 2)), [2, 0, 1])
    (tmp_path / "file").write_bytes(b'{"a": 1}')
    with pytest.raises((OSError, UserError), match="no space"):
        write(monkeypatch, tmp_path)
    assert (tmp_path / "file").read_bytes() == b'{"a": 1}'
    assert set(names(tmp_path)) - {"file.keys"} == {"file", "rows"}  # the keys come first, whole


def test_an_array_in_one_file_is_what_numpy_writes(tmp_path):
    rows = np.arange(12, dtype=np.float16).reshape(6, 2)
    folder = write_embeddings(tmp_path / "rows", rows, [3, 0, 2, 1])
    opened = EmbeddingFolder(folder)
    single_files.write_npy(opened, tmp_path / "single.npy", opened.keys)
    np.save(tmp_path / "plain.npy", rows)
    assert (tmp_path / "single.npy").read_bytes() == (tmp_path / "plain.npy").read_bytes()


def test_files_are_replaced_in_one_place():
    """A folder of weights is replaced too; checkpoints have an order of their own."""
    replacing = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.replace", "os.rename"):
                replacing.add(path.name)
    assert replacing == {"whole_files.py", "weight_files.py"}
