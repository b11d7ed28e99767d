"""A line that cannot be read costs that line alone, and is told once."""

import json

import pytest

from big_align.training.logs.line_files import append_line, keep_lines, number_of, read_lines

GOOD = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": "nan"}, {"step": None, "loss": 1.0}]
BAD = [
    b'{"step": 3, "lo',
    b'{"loss": 1.0}',
    b'{"step": 3, "note": "\xff\xfe"}',
    b'{"step": "3"}',
    b'{"step": true}',
    b"[1, 2]",
    b"[" * 100_000,
    b"\x00\x00",
]


def write(path, lines):
    path.write_bytes(b"".join(line + b"\n" for line in lines))


@pytest.mark.parametrize("bad", BAD)
def test_bad_lines_are_left_out_and_told_in_one_line(tmp_path, capsys, bad):
    path = tmp_path / "lines.jsonl"
    good = [json.dumps(each).encode() for each in GOOD]
    write(path, [good[0], bad, good[1], bad, b"", good[2]])
    assert list(read_lines(path, ("step",))) == GOOD
    told = f"warning: {path}: 2 lines that cannot be read are"
    assert capsys.readouterr().err == f"{told} left out\n"
    keep_lines(path, lambda found: found["step"] != 2, ("step",))
    assert capsys.readouterr().err == f"{told} dropped\n"
    assert path.read_bytes() == good[0] + b"\n" + good[2] + b"\n"
    assert list(read_lines(path, ("step",))) == [GOOD[0], GOOD[2]]
    assert capsys.readouterr().err == ""


def test_a_line_goes_behind_one_that_was_cut_short(tmp_path, capsys):
    path = tmp_path / "new" / "lines.jsonl"
    append_line(path, {"step": 1})
    path.write_bytes(path.read_bytes() + b'{"step": 2')
    append_line(path, {"step": 3})
    assert [each["step"] for each in read_lines(path)] == [1, 3]
    assert "1 line that cannot be read is left out" in capsys.readouterr().err


def test_lines_that_are_not_wanted_are_not_looked_at(tmp_path, capsys):
    path = tmp_path / "lines.jsonl"
    write(path, [b'{"step": 1}', b"{", b'{"step": 2}'])
    assert len(list(read_lines(path, wanted=lambda number, line: number != 1))) == 2
    assert capsys.readouterr().err == ""
    keep_lines(tmp_path / "none", lambda found: True)
    assert list(read_lines(tmp_path / "none")) == []


@pytest.mark.parametrize(
    ("value", "number"),
    [(1, 1.0), (0.5, 0.5), ("inf", float("inf")), ("-inf", float("-inf"))]
    + [(other, None) for other in (True, None, "1", [1], {}, "NaN", 10**400)],
)
def test_what_is_a_number(value, number):
    assert number_of(value) == number
