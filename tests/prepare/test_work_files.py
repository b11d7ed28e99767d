"""What a job keeps for its next start, damaged: a line that names the file and what to do."""

import re

import pytest

from big_align.core.errors import UserError
from big_align.data.shared import storage

DAMAGED = {
    "bytes": b'["\xff"]',
    "cut short": b'["a", ',
    "deep": b"[" * 10_000 + b"]" * 10_000,
    "twice": b'{"a": 1, "a": 2}',
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_named_and_can_be_deleted(tmp_path, name):
    path = tmp_path / "00001.jsonl"
    path.write_bytes(DAMAGED[name])
    for read in (storage.read_json, lambda path: list(storage.read_lines(path))):
        with pytest.raises(UserError, match=f"^{re.escape(str(path))}.*delete it, and it is made"):
            read(str(path))


def test_the_damaged_line_is_numbered(tmp_path):
    path = tmp_path / "00001.jsonl"
    path.write_text('[1]\n\n{"a": 2}\n[3\n')
    lines = storage.read_lines(str(path))
    assert [next(lines), next(lines)] == [[1], {"a": 2}]
    with pytest.raises(UserError, match="00001.jsonl, line 4, is not JSON"):
        next(lines)
