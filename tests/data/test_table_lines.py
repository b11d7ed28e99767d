"""Bad lines of tables: each costs itself alone, is named, and is never held in memory."""

import csv
import io
import json
import random
import tracemalloc

import pytest

from big_align.core.errors import UserError
from big_align.data import files, table_lines
from big_align.data.sources.csv_source import CsvSource
from big_align.data.sources.image_folder import JsonObjectsSource
from tests.data.samples import encode_image, make_pixels

BAD = [b'"0.png","an open quote', b"0.png,\xff", b"0.png", b"0.png,a,b", b",no image",
       b'"0.png" x,"after a quote"', b"https://a.test/1.jpg,an address"]  # fmt: skip


def write_images(folder):
    for number in range(3):
        (folder / f"{number}.png").write_bytes(encode_image(make_pixels(number)))


def read_all(source):
    places = [(s, n) for s, size in enumerate(source.shard_sizes) for n in range(size)]
    return [(source.key(*place).rpartition("/")[2], source.read_text(*place)) for place in places]


@pytest.mark.parametrize("quoting", [csv.QUOTE_ALL, csv.QUOTE_MINIMAL])
@pytest.mark.parametrize("seed", range(5))
def test_of_a_table_with_bad_lines_all_others_are_read(tmp_path, seed, quoting):
    write_images(tmp_path)
    rng = random.Random(seed)
    good, lines, bad, at = [], [b"file,text\n"], set(), 2
    for number in range(60):
        if rng.random() < 0.3:
            bad.add(at)
            lines.append(rng.choice(BAD) + b"\n")
            at += 1
        text = f"text {number}" + rng.choice(["", ", a comma", " a 'quote'", "\n\nthree lines"])
        made = io.StringIO()
        csv.writer(made, quoting=quoting, lineterminator="\n").writerow([f"./{number}.png", text])
        good.append((f"{number}.png", ([text], ())))
        lines.append(made.getvalue().encode())
        at += made.getvalue().count("\n")
    path = tmp_path / "x.csv"
    path.write_bytes(b"".join(lines))
    source = CsvSource(str(path), skip_bad_lines=True)
    assert read_all(source) == good
    assert set(source.bad_lines) == bad and int(source.broken.sum()) == len(bad) > 5
    with pytest.raises(UserError, match=r"x.csv, line \d"):
        CsvSource(str(path))


def test_a_bad_line_inside_of_a_text_in_quotes_costs_that_row(tmp_path):
    write_images(tmp_path)
    data = b'file,text\n0.png,"two\n\xff\nlines"\n1.png,whole\n'
    (tmp_path / "x.csv").write_bytes(data)
    source = CsvSource(str(tmp_path / "x.csv"), skip_bad_lines=True)
    assert read_all(source) == [("1.png", (["whole"], ()))] and list(source.bad_lines) == [2, 3, 4]


OPENED = {
    "tabs": ("\t", "file\ttext", "{0}.png\t{1}"),
    "commas": (",", "file,text", "{0}.png,{1}"),
    "bars": ("|", "file|number|text", "{0}.png|0|{1}"),
    "semicolons": (";", "text;file", "{1};{0}.png"),
    "labels last": (",", "file,text,label", "{0}.png,{1},17"),
    "spaces": (",", "file, text, label", "{0}.png, 3,{1}"),
    "keys": (",", "id,text", "{0:05d},{1}"),
    "texts alone": (",", "name,text", "name{2},{1}"),
}


@pytest.mark.parametrize("kind", OPENED)
@pytest.mark.parametrize("closed", [1, 2, 40, 1000])
def test_a_text_that_begins_with_a_quote_costs_its_own_line(kind, closed):
    delimiter, header, row = OPENED[kind]
    texts = [f"text {n}" + ", or so" * (delimiter != ",") for n in range(200)]
    texts[49] = '"Hello number 49'
    if 49 + closed < 200:
        texts[49 + closed] = 'he says "hello"' if closed == 2 else 'he says hello"'
    names = ["abcdefghij"[n % 10] * (1 + n // 10) for n in range(200)]
    lines = [
        header,
        *(row.format(n, t, m) for n, (t, m) in enumerate(zip(texts, names, strict=True))),
    ]
    bad = table_lines.BadLines("x.csv", skip=True)
    numbered = ((n, f"{line}\n") for n, line in enumerate(lines, 1))
    found = [n for n, _ in table_lines.read_rows(numbered, delimiter, bad)]
    assert list(bad.found) == [51] and found == [n for n in range(1, 202) if n != 51]


NAMES = ("{0}.jpg", "a b/{0:04d}.png", "IMG_{0}.JPG#1", "https://a.test/{0}")
SAID = ("a dog", "two dogs, running", '5 feet 4"', "", 'a "fine" day', "1,000 men", "red,green")


@pytest.mark.parametrize("quoting", [csv.QUOTE_ALL, csv.QUOTE_MINIMAL, csv.QUOTE_NONE])
@pytest.mark.parametrize(
    "columns", ["name,text", "text,name", "name,text,label", "text,label,name"]
)
def test_no_row_is_lost_in_the_text_of_another(columns, quoting):
    """Each line begins a row or is bad, whatever its text, if one text begins with a quote."""
    for seed in range(200):
        rng, lines = random.Random(seed), [columns]
        name, opened = rng.choice(NAMES), rng.randrange(1, 9)
        for number in range(1, 9):
            text = '"' * (number == opened) + rng.choice(SAID)
            cells = {"name": name.format(number * 7), "text": text, "label": "1"}
            made, ordered = io.StringIO(), [cells[column] for column in columns.split(",")]
            if number == opened or quoting == csv.QUOTE_NONE:
                made.write(",".join(ordered))
            else:
                csv.writer(made, quoting=quoting, lineterminator="").writerow(ordered)
            lines.append(made.getvalue())
        bad = table_lines.BadLines("x.csv", skip=True)
        numbered = ((n, f"{line}\n") for n, line in enumerate(lines, 1))
        begun = {n for n, _ in table_lines.read_rows(numbered, ",", bad)} | set(bad.found)
        assert begun == set(range(1, 10)), lines


@pytest.mark.parametrize(
    "text",
    [
        "a, b\nc, d\ne, f",
        "Ingredients:\n1, sugar\n2, flour",
        "Sizes\n1,000 to 2,000\n3,5",
        "A list:\nred, blue\n\ngreen, see https://a.test/b.jpg\nor, b.jpg\n",
        "one\ntwo\nthree",
        "quoted words, and\nmore, of them",
    ],
)
@pytest.mark.parametrize("columns", ["{0}.png,{1}", "{1},{0}.png", "{0}.png,{1},17", "name,{1}"])
def test_texts_of_several_lines_with_commas_are_texts(text, columns):
    made = columns.format(12, '"' + text.replace('"', '""') + '"') + "\n"
    width = columns.count(",") + 1
    lines = ["abc"[n] for n in range(width)]
    numbered = enumerate(io.StringIO(",".join(lines) + "\n" + made * 3, newline=""), 1)
    rows = [cells for _, cells in table_lines.read_rows(numbered, ",", table_lines.BadLines("x"))]
    assert len(rows) == 4 and all(text in cells for cells in rows[1:])


def test_json_lines_and_labels_of_another_kind(tmp_path):
    write_images(tmp_path)
    named = [("0.png", 1), ("1.png", "dog"), ("1.png", -3), ("2.png", 2), ("9.png", [2.5])]
    lines = [{"file_name": name, "label": label} for name, label in named]
    lines[3:3] = [["0.png"], {"label": 2}]
    text = "\n".join(map(json.dumps, lines)) + "\n{\n" + "[" * 100_000 + "\n"
    (tmp_path / "x.jsonl").write_text(text)
    source = JsonObjectsSource(str(tmp_path / "x.jsonl"), skip_bad_lines=True)
    assert read_all(source) == [("0.png", ([], (1,))), ("2.png", ([], (2,)))]
    assert list(source.bad_lines) == [2, 3, 4, 5, 7, 8, 9]
    assert "the label is 'dog' and that of line 1 is '1'" in source.bad_lines[2]
    assert all(len(why) < 310 and "\n" not in why for why in source.bad_lines.values())


def test_objects_of_a_list_that_cannot_be_used(tmp_path):
    write_images(tmp_path)
    path = tmp_path / "x.json"
    path.write_text('[{"image": "0.png", "caption": "a"}, 3, {"caption": "b"},{"image": "1.png"}]')
    source = JsonObjectsSource(str(path), skip_bad_lines=True)
    assert read_all(source) == [("0.png", (["a"], ()))]
    assert list(source.bad_lines) == [2, 3, 4]
    with pytest.raises(UserError, match="x.json, object 2 is not a JSON object: 3; skip_bad_lines"):
        JsonObjectsSource(str(path))
    for text, message in [
        ("[]", "has no list of JSON objects"), ("[1, 2]", "has no list of JSON objects"),
        ("[", "x.json is not JSON"), ("{}", "has no list of JSON objects"),
        ('[{"image": "9.png", "caption": "a"}]', "x.json, object 1: there is no file .*9.png"),
    ]:  # fmt: skip
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            JsonObjectsSource(str(path))


def test_what_all_lines_share_is_an_error_of_the_table(tmp_path):
    path = tmp_path / "x.csv"
    for text, message in [
        ("file,text\n8.png,a\n9.png,b\n", "there is no file .*8.png, nor any other"),
        ("file,text\n,a\n,b\n", "x.csv has no row of an image; line 2 names no image"),
        ("\xff,text\n0.png,a\n", "x.csv, line 1 is not UTF-8"),
        ('"file,text\n0.png,a\n', "x.csv, line 1: "),
        ("file,text\nhttps://a.test/a.jpg,a\n", "no row of an image; line 2 the image is an addre"),
    ]:
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(UserError, match=message):
            CsvSource(str(path), skip_bad_lines=True)


def test_a_missing_image_is_a_broken_example_even_in_the_first_row(tmp_path):
    write_images(tmp_path)
    (tmp_path / "x.csv").write_text("file,text\n9.png,a\n0.png,b\n")
    source = CsvSource(str(tmp_path / "x.csv"), skip_bad_lines=True)
    assert source.shard_sizes.sum() == 2 and not source.bad_lines
    with pytest.raises(ValueError, match="there is no file"):
        source.read(0, 0)
    assert source.read(0, 1).captions == ["b"]


class BombFile(io.RawIOBase):
    """A table whose second line is long."""

    def __init__(self, size):
        super().__init__()
        self._left, self._end = size, [b"\n1.png,b\n", b""]
        self._start = [b"file,text\n0.png,a\n0.png,"]

    def readable(self):
        return True

    def readinto(self, buffer):
        if self._start:
            data = self._start.pop()
        elif not self._left:
            data = self._end.pop(0) if self._end else b""
        else:
            data = b"x" * min(len(buffer), self._left)
            self._left -= len(data)
        buffer[: len(data)] = data
        return len(data)


def test_a_long_line_is_named_and_not_held(tmp_path, monkeypatch):
    class Bombs:
        def open(self, path):
            return BombFile(2**26)

    monkeypatch.setattr(table_lines, "LINE_MAX", 2**20)
    monkeypatch.setattr(files, "files_of", lambda path: Bombs())
    bad = table_lines.BadLines("x.csv", skip=True)
    tracemalloc.start()
    try:
        rows = list(table_lines.read_rows(table_lines.read_text_lines(bad), ",", bad))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert rows == [(1, ["file", "text"]), (2, ["0.png", "a"]), (4, ["1.png", "b"])]
    assert bad.found == {3: f"has more than {table_lines.LINE_MAX:,} characters"}
    assert peak < 10 * table_lines.LINE_MAX


def test_line_endings_of_any_system_are_read(tmp_path):
    for end in ("\n", "\r\n", "\r"):
        (tmp_path / "x.csv").write_bytes(f"{end}file,text{end}0.png,a{end}1.png,b{end}".encode())
        bad = table_lines.BadLines(str(tmp_path / "x.csv"))
        rows = list(table_lines.read_rows(table_lines.read_text_lines(bad), ",", bad))
        assert rows == [(2, ["file", "text"]), (3, ["0.png", "a"]), (4, ["1.png", "b"])]


def test_lines_that_are_left_out_are_told(tmp_path, caplog):
    path = tmp_path / "x.csv"
    path.write_text("file,text\n0.png,a\n,b\n,c\n")
    (tmp_path / "0.png").touch()
    with caplog.at_level("WARNING"):
        CsvSource(str(path), skip_bad_lines=True)
    assert f"{path}: 2 lines left out; line 3 names no image in the column 'file'" in caplog.text
