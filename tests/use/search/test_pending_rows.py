"""Whatever a killed process leaves, the rows that are whole are read, and others can follow."""

import numpy as np
import pytest

from big_align.use.search.stores.pending_rows import PendingRows

VALUES = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float16)
RECORDS = [[f"na\nme {n}", "s \udcff"] for n in range(5)]
BLOBS = [b"", b"abc", b"\n", b"defgh", b"i"]


def write(folder):
    rows = PendingRows(folder, "images", 3, "float16")
    rows.append(RECORDS[:2], VALUES[:2], BLOBS[:2])
    rows.append(RECORDS[2:], VALUES[2:], BLOBS[2:])
    return rows


def check(rows, count):
    assert rows.records == RECORDS[:count]
    np.testing.assert_array_equal(rows.read_vectors(), VALUES[:count])
    assert [rows.read_blob(number) for number in range(count)] == BLOBS[:count]


def test_rows_are_read_as_they_were_written(tmp_path):
    check(write(tmp_path), 5)
    check(PendingRows(tmp_path, "images", 3, "float16"), 5)


@pytest.mark.parametrize("ending", ["vectors", "bytes", "rows"])
def test_a_file_that_is_cut_anywhere_loses_only_what_is_not_whole(tmp_path, ending):
    path = tmp_path / f"pending-images.{ending}"
    write(tmp_path)
    whole = path.read_bytes()
    counts = set()
    for size in range(len(whole), -1, -1):
        path.write_bytes(whole[:size])
        rows = PendingRows(tmp_path, "images", 3, "float16")
        count = len(rows.records)
        check(rows, count)
        counts.add(count)
        rows.append(RECORDS[count:], VALUES[count:], BLOBS[count:])
        check(PendingRows(tmp_path, "images", 3, "float16"), 5)
    assert counts >= {1, 3, 4, 5}


@pytest.mark.parametrize("ending", ["vectors", "bytes", "rows"])
def test_what_follows_a_changed_byte_is_not_used(tmp_path, ending):
    write(tmp_path)
    whole = {path: path.read_bytes() for path in tmp_path.iterdir()}
    path = tmp_path / f"pending-images.{ending}"
    for place in range(len(whole[path])):
        for each, content in whole.items():
            each.write_bytes(content)
        changed = bytearray(whole[path])
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        rows = PendingRows(tmp_path, "images", 3, "float16")
        assert len(rows.records) < 5
        check(rows, len(rows.records))


def test_nothing_is_left_when_they_are_removed(tmp_path):
    write(tmp_path).remove()
    assert list(tmp_path.iterdir()) == []
