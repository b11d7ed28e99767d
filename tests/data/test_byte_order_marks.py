"""Files of text mean the same whatever byte-order mark they have, in every reader."""

import io
import json
import pathlib
import tarfile

import pytest

from big_align.core.errors import UserError
from big_align.data import files
from big_align.data.examples import BrokenExample, clean_captions
from big_align.data.labels.classes import read_classes
from big_align.data.labels.descriptions import read_descriptions
from big_align.data.sources.csv_source import CsvSource
from big_align.data.sources.file_pairs import FilePairsSource
from big_align.data.sources.image_folder import look_inside, read_image_folder
from big_align.data.sources.tar_source import TarSource
from big_align.data.tags.tag_counting import read_names
from big_align.data.text import piece_files, roberta_tokenizer, vocabulary
from big_align.data.text.tokenizers import list_wordpieces
from big_align.prepare.steps import read_listed
from big_align.use.inference.text_shards import list_column, list_lines
from big_align.weights.formats.text_files import read_json
from tests.data.samples import encode_image, make_pixels

ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-32")
TEXTS = {
    "txt": ["a dög", "", '["a cat", "two cats"]', " \n"],
    "json": ['{"caption": "a dög", "label": 2}'] * 4,
    "cls": ["3", "[1, 2]", "0", " 4 "],
}
PIECES = ("<s>", "<pad>", "</s>", "<unk>", "dög")


def read_texts(source):
    found = []
    for index in range(int(source.shard_sizes[0])):
        try:
            found.append(source.read_text(0, index))
        except BrokenExample as error:
            found.append(str(error))
    return found


def write_pairs(folder, kind, encoding):
    """Images with texts, as files and as members of a shard."""
    with tarfile.open(folder / "x.tar", "w") as tar:
        for number, text in enumerate(TEXTS[kind]):
            image = encode_image(make_pixels(number))
            for ending, data in (("png", image), (kind, text.encode(encoding))):
                (folder / f"{number}.{ending}").write_bytes(data)
                member = tarfile.TarInfo(f"{number}.{ending}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_captions_and_labels_of_files_and_members(tmp_path, encoding):
    empty = "the caption is empty"
    for kind, fields, expected in (
        ("txt", {}, [(["a dög"], ()), empty, (["a cat", "two cats"], ()), empty]),
        ("json", {"caption": "json.caption", "label": "json.label"}, [(["a dög"], (2,))] * 4),
        ("cls", {"caption": "", "label": "cls"}, [([], (3,)), None, ([], (0,)), ([], (4,))]),
    ):
        folder = tmp_path / kind
        folder.mkdir()
        write_pairs(folder, kind, encoding)
        for source in (
            FilePairsSource(str(folder), **fields), TarSource(f"{folder}/x.tar", **fields)
        ):  # fmt: skip
            found = read_texts(source)
            expected[1] = expected[1] or found[1]  # several classes in a text are no label
            assert found == expected


READERS = {
    "v.txt": ("[PAD]\n[UNK]\n[CLS]\n[SEP]\ndög\n", list_wordpieces),
    "v.json": (
        json.dumps({"model": {"vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3}}}),
        list_wordpieces,
    ),
    "m.txt": ("#version: 0.2\nd ö\n", lambda path: piece_files.read_merges(path, "")),
    "ids.json": (
        json.dumps({piece: n for n, piece in enumerate(PIECES)}), roberta_tokenizer.read_vocabulary,
    ),
    "lines.txt": ("a dög\n\ntwo\n", lambda path: list(vocabulary.read_file(path))),
    "texts.txt": ("a dög\n\ntwo\n", lambda path: list_lines(path).read(0)),
    "column.tsv": ("id\ttext\n7\tdög\n", lambda path: list_column(path, "text", "id").read(0)),
    "classes.txt": ("dög\ncat\n", read_classes),
    "classes.csv": ("name,description\ndög,an animal\n", read_classes),
    "classes.json": ('["dög", "cat"]', read_classes),
    "d.csv": ("name,description\ndög,an animal\n", read_descriptions),
    "d.json": ('{"dög": "an animal"}', read_descriptions),
    "names.csv": ("/m/011k07,Tortoise\n/m/0bt9lr,Dög\n", read_names),
    "config.json": ('{"model_type": "dög"}', lambda path: read_json(pathlib.Path(path))),
    "x.csv": ("file,text\r\n0.png,a dög\r\n", lambda path: read_texts(CsvSource(path))),
    "x.tsv": ("file\ttext\n0.png\ta dög\n", lambda path: read_texts(CsvSource(path))),
    "x.jsonl": (
        '{"file_name": "0.png", "text": "a dög"}\n', lambda p: read_texts(read_image_folder(p)),
    ),
    "x.json": (
        ' \n[{"file_name": "0.png", "text": "a dög"}]',
        lambda path: (look_inside(path, "coco"), read_texts(read_image_folder(path))),
    ),
    "any.txt": ("a\r\nb", files.read_text),
    "drop.jsonl": ('{"key": "dög-7"}\r\n', read_listed),
}  # fmt: skip


@pytest.mark.parametrize("encoding", ENCODINGS[1:])
@pytest.mark.parametrize("name", READERS)
def test_every_file_of_text_is_read_alike(tmp_path, name, encoding):
    (tmp_path / "0.png").write_bytes(encode_image(make_pixels(0)))
    text, read = READERS[name]
    path = tmp_path / name
    path.write_bytes(text.encode())
    expected = read(str(path))
    path.write_bytes(text.encode(encoding))
    assert read(str(path)) == expected


def test_a_mark_inside_of_a_text_is_no_part_of_a_caption(tmp_path):
    assert clean_captions(["\ufeffa dog", " \ufeff ", "two\ufeff\n"]) == ["a dog", "two"]
    (tmp_path / "0.png").write_bytes(encode_image(make_pixels(0)))
    (tmp_path / "x.csv").write_text("file,text\n0.png,\ufeff\n0.png,\ufeffa dog\n0.png, \n")
    for skip in (False, True):
        source = CsvSource(str(tmp_path / "x.csv"), skip_bad_lines=skip)
        assert source.read_text(0, 0) == (["a dog"], ())
        assert list(source.bad_lines) == ([2, 4] if skip else [])
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"text {name}\n", "utf-8-sig")
    joined = (tmp_path / "a.txt").read_bytes() + (tmp_path / "b.txt").read_bytes()
    (tmp_path / "c.txt").write_bytes(joined)
    assert list(vocabulary.read_file(str(tmp_path / "c.txt"))) == ["text a", "text b"]


@pytest.mark.parametrize("name", ["x.jsonl", "drop.jsonl"])
def test_json_lines_that_were_joined_are_read_as_if_none_had_a_mark(tmp_path, name):
    (tmp_path / "0.png").write_bytes(encode_image(make_pixels(0)))
    text, read = READERS[name]
    path, found = tmp_path / name, []
    for encoding in ("utf-8", "utf-8-sig"):
        path.write_bytes(text.encode(encoding) * 2 + "\ufeff\n".encode())
        found.append(read(str(path)))
    assert found[0] == found[1] and found[0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"dog\ncaf\xe9\n", r"x.txt, line 2 is not UTF-8 \(byte 0xe9 at 7\).*WINDOWS-1252"),
        ("a dog".encode("utf-16-le"), "x.txt, line 1 is UTF-16 without a byte-order mark.*iconv"),
        (b"\xff\xfea\x00\x00", r"x.txt, line 1 is not UTF-16 \(byte 0x00 at 4\)"),
    ],
)
def test_what_is_no_text_is_named(tmp_path, data, message):
    path = tmp_path / "x.txt"
    path.write_bytes(data)
    for read in (
        files.read_text,
        read_classes,
        list_lines,
        lambda p: list(vocabulary.read_file(p)),
    ):
        with pytest.raises(UserError, match=message):
            read(str(path))
    (tmp_path / "x.png").write_bytes(encode_image(make_pixels(0)))
    with pytest.raises(BrokenExample, match="the text is (not UTF|UTF-16 without)"):
        FilePairsSource(str(tmp_path)).read_text(0, 0)


def test_a_missing_file_is_both_errors(tmp_path):
    for kind in (UserError, FileNotFoundError):
        with pytest.raises(kind, match="none.txt cannot be read"):
            files.read_text(str(tmp_path / "none.txt"))
