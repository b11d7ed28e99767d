"""JSON that others wrote is parsed within bounds, or refused in a line."""

import json

import pytest

from big_align.core.errors import UserError
from big_align.data.json_texts import DEEPEST, NotJson, parse_json, read_json


def nest(depth, start="[", end="]"):
    return start * depth + "1" + end * depth


def test_what_is_written_is_read():
    value = {"a": [1, 2.5, None, True, "\ud83d", {"b": {}}], "c": "[[[[" * 1000, "d": [[]] * 300}
    assert parse_json(json.dumps(value)) == value
    assert parse_json(nest(DEEPEST)) and parse_json(nest(DEEPEST, '{"a":', "}"))


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "^is not JSON: Expecting value"),
        ("[1,]", "^is not JSON: "),
        ("9" * 5000, "^is not JSON: Exceeds the limit"),
        (nest(DEEPEST + 1), f"nested more than {DEEPEST} deep"),
        (nest(900, '{"a":', "}"), f"nested more than {DEEPEST} deep"),
        (nest(100_000), f"nested more than {DEEPEST} deep"),
        ("[" * 100_000, "^is not JSON"),
        ('[{"a": 1, "b": 2, "a": 1}]', "it has 'a' twice in an object"),
        ("[" + "[]," * 2_000_000 + "1]", "has 4000001 values in 6000003 bytes"),
    ],
)
def test_what_is_not_read_is_told_in_a_line(tmp_path, text, message):
    with pytest.raises(NotJson, match=message) as error:
        parse_json(text)
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UserError) as told:
        read_json(str(path))
    assert str(told.value) == f"{path} {error.value}" and "\n" not in str(told.value)
