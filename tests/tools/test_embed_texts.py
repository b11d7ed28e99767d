"""Texts on the command line: every row is its text's, in folders and in single files."""

import datetime
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import big_align
from big_align import weights
from big_align.core.errors import UserError
from big_align.data.precomputed import single_files
from big_align.data.precomputed.embedding_files import EmbeddingFolder
from big_align.data.precomputed.shard_files import list_shards
from big_align.tools import embed
from big_align.use.inference import text_shards
from big_align.use.inference.loaded_model import LoadedModel
from tests.data.samples import encode_image, make_pixels, write_tar
from tests.embedding_folder import write_embeddings
from tests.use.inference.test_loaded_model import DUAL, SEEN, TOKENIZER, make_pretrained

TEXTS = ["a cat", "a red dog on grass", "", "a photo  ", "of grass", "a cat"]


def run(**options):
    return embed.main([f"--{name}={value}" for name, value in options.items()])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "dual"
    weights.save(path, make_pretrained(DUAL, preprocessing=SEEN, tokenizer=TOKENIZER), "big_align")
    return str(path)


@pytest.fixture
def lines(tmp_path):
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    return tmp_path / "texts.txt"


@pytest.fixture
def table(tmp_path):
    """The same texts in CSV and in row groups of Parquet, with keys and without images."""
    keys = [f"k{n}" for n in range(len(TEXTS))]
    rows = [f'{key},"{text}",{n}\n' for n, (key, text) in enumerate(zip(keys, TEXTS, strict=True))]
    (tmp_path / "items.csv").write_text("id,title,price\n" + "".join(rows))
    columns = {"id": keys, "title": [text or None for text in TEXTS]}
    pq.write_table(pa.table(columns), tmp_path / "items.parquet", row_group_size=4)
    return tmp_path


def read(shards):
    parts = [shards.read(n) for n in range(len(shards.shard_sizes))]
    assert [len(texts) for _, texts in parts] == shards.shard_sizes.tolist()
    return [key for keys, _ in parts for key in keys], [t for _, texts in parts for t in texts]


WANTED = [text.strip() for text in TEXTS]
NUMBERS = [str(number) for number in range(1, len(TEXTS) + 1)]


def test_lines_and_columns_are_texts_with_numbers_or_keys(lines, table, monkeypatch):
    monkeypatch.setattr(text_shards, "SHARD_SIZE", 4)
    found = text_shards.list_lines(str(lines))
    assert read(found) == (NUMBERS, WANTED) and found.shard_sizes.tolist() == [4, 2]
    assert [shard.name for shard in list_shards(found)] == ["texts.txt", "texts.txt (2)"]
    for name in ("items.csv", "items.parquet"):
        path = str(table / name)
        assert read(text_shards.list_column(path, "title")) == (NUMBERS, WANTED)
        keyed = text_shards.list_column(path, "title", "id")
        assert read(keyed) == ([f"k{n}" for n in range(6)], WANTED)
        assert keyed.shard_sizes.tolist() == [4, 2]


def test_a_line_ends_where_an_editor_says(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes("one\u2028more\r\n\ntwo\x0b\n".encode())
    assert read(text_shards.list_lines(str(path))) == (
        ["1", "2", "3"],
        ["one\u2028more", "", "two"],
    )


def write_pairs(folder):
    """Tar shards of 3 + 1 images with two captions each; one has none that can be read."""
    for shard, count in enumerate((3, 1)):
        members = []
        for n in range(count):
            name, image = f"{shard}{n}", encode_image(make_pixels(n))
            text = b'{"captions": ["%s a", "%s b"]}' % (name.encode(), name.encode())
            members += [(f"{name}.png", image), (f"{name}.json", b"{" if name == "01" else text)]
        write_tar(folder / f"pairs-{shard}.tar", members)
    return str(folder / "pairs-*.tar")


def test_the_captions_of_an_example_share_its_key_and_a_broken_one_is_left_out(tmp_path):
    from big_align.config.components.source_flags import open_source

    path = write_pairs(tmp_path)
    source, _ = open_source(path, None, ["caption=json.captions"], captions=True)
    found = text_shards.list_captions(source)
    assert found.shard_sizes.tolist() == [4, 2]
    keys = ["00", "00", "02", "02", "10", "10"]
    assert read(found) == (keys, [f"{k} {x}" for k, x in zip(keys, "ababab", strict=True)])


@pytest.mark.slow
def test_every_row_is_that_of_its_text_in_folders_and_files(model, lines, table, capsys):
    known = np.zeros((len(TEXTS), 0))
    real = [n for n, text in enumerate(WANTED) if text]
    rows = big_align.load(model).embed_texts([WANTED[n] for n in real])
    known = np.zeros((len(TEXTS), rows.shape[1]), np.float32)
    known[real] = rows
    keys = [number if n in real else "" for n, number in enumerate(NUMBERS)]

    given = {"model": model, "what": "text", "batch_size": 8}
    assert run(**given, source=lines, output=table / "out", dtype="float32") == 0
    folder = EmbeddingFolder(table / "out")
    np.testing.assert_allclose(folder.read(0, 6), known, atol=1e-6)
    assert folder.keys(folder.shards[0]) == keys and folder.absent == 1
    assert folder.index["unit_length"] and folder.index["made_by"]["what"] == "text"
    assert run(**given, source=lines, output=table / "out", dtype="float32") == 0
    assert "0 of 6 texts embedded now" in capsys.readouterr().out

    for name in ("items.csv", "items.parquet"):
        at = {"source": table / name, "column": "title", "key_column": "id"}
        assert run(**given, **at, output=table / f"{name}.npy") == 0
        array = np.load(table / f"{name}.npy")
        assert array.dtype == np.float16
        np.testing.assert_allclose(array, known, atol=1e-3)
        named = (table / f"{name}.keys").read_text().split("\n")
        assert named == [f"k{n}" if n in real else "" for n in range(6)] + [""]

        assert run(**given, **at, output=table / f"{name}.out.parquet") == 0
        read_back = pq.read_table(table / f"{name}.out.parquet")
        assert read_back["key"].to_pylist() == [f"k{n}" if n in real else None for n in range(6)]
        kind = read_back.schema.field("embedding").type
        assert kind == pa.large_list(pa.float32())
        values = read_back["embedding"].to_pylist()
        assert values[2] is None
        np.testing.assert_allclose([values[n] for n in real], known[real], atol=1e-6)
        assert not list(table.glob("*.shards")) and not list(table.glob("*.partial"))


def write_folder(path, shards):
    """A folder of embeddings with these keys, by shard."""
    rows = np.arange(2 * sum(map(len, shards.values())), dtype=np.float32).reshape(-1, 2)
    write_embeddings(path, rows, list(map(len, shards.values())))
    index = json.loads((path / "index.json").read_text())
    for entry, (name, keys) in zip(index["shards"], shards.items(), strict=True):
        entry["name"] = name
        (path / f"{entry['file']}.keys").write_text("".join(f"{key}\n" for key in keys))
    (path / "index.json").write_text(json.dumps(index))
    return EmbeddingFolder(path)


@pytest.mark.parametrize(
    ("shards", "unique", "expected", "told"),
    [
        ({"a.tar": ["0", "1"], "b.tar": ["2", ""]}, True, ["0", "1", "2", ""], ""),
        ({"a.tar": ["0", ""], "b.tar": ["0", ""]}, True, ["a/0", "", "b/0", ""], "'0' is in a.tar"),
        ({"x/a": ["0"], "y/a": ["0"]}, True, ["x/a/0", "y/a/0"], "'0' is in x/a and in y/a"),
        ({"a.tar": ["0"], "a.tar (2)": ["0"]}, True, ["a/0", "a (2)/0"], "SHARD/KEY"),
        ({"a.tar": ["0", "0"], "b.tar": ["1"]}, False, ["0", "0", "1"], ""),
        ({"a.tar": ["0", "0"], "b.tar": ["1"]}, True, ["0", "0", "1"], "have the key '0', all in"),
        (
            {"a.parquet, row group 0": ["0"], "a.parquet, row group 1": ["0"]},
            False, ["0", "0"], "",
        ),
    ],
)  # fmt: skip
def test_a_key_in_one_file_of_embeddings_names_one_row(tmp_path, shards, unique, expected, told):
    rows = write_folder(tmp_path / "rows", shards)
    keys, said = single_files.name_rows(rows, unique)
    assert told in said and bool(told) == bool(said)
    single_files.write_npy(rows, tmp_path / "a.npy", keys)
    single_files.write_parquet(rows, tmp_path / "a.parquet", keys)
    assert (tmp_path / "a.keys").read_text().split("\n")[:-1] == expected
    found = pq.read_table(tmp_path / "a.parquet")["key"].to_pylist()
    assert found == [key or None for key in expected]


def test_keys_of_other_bytes_stay_different_in_parquet(tmp_path):
    rows = write_folder(tmp_path / "rows", {"a.tar": ["x", "y"]})
    (file,) = (tmp_path / "rows").glob("*.keys")
    file.write_bytes(b"\xe9\n\xe8\n")
    single_files.write_parquet(rows, tmp_path / "a.parquet", rows.keys)
    assert pq.read_table(tmp_path / "a.parquet")["key"].to_pylist() == ["\\xe9", "\\xe8"]


def test_keys_of_a_column_are_as_a_text_has_them(tmp_path):
    day = datetime.datetime(2021, 5, 3)
    for values, expected in (
        (["007", "7", "1e3"], ["007", "7", "1e3"]),
        ([7.0, 8.0, 0.5], ["7", "8", "0.5"]),
        ([7, 8, 10**18], ["7", "8", str(10**18)]),
        ([day, day.replace(day=4), day.replace(hour=1)], ["2021-05-03", "2021-05-04",
                                                          "2021-05-03 01:00:00"]),
    ):  # fmt: skip
        table = pa.table({"id": values, "title": [1984, None, 7]})
        pq.write_table(table, tmp_path / "items.parquet")
        found = text_shards.list_column(str(tmp_path / "items.parquet"), "title", "id")
        assert read(found) == (expected, ["1984", "", "7"])
    path = tmp_path / "items.csv"
    path.write_text("id,title\n007,a\n 7 ,b\n1e3,c\n2021-05-03,d\n")
    found = text_shards.list_column(str(path), "title", "id")
    assert read(found)[0] == ["007", "7", "1e3", "2021-05-03"]


@pytest.mark.slow
def test_images_go_to_single_files_and_a_file_that_was_interrupted_continues(
    model, tmp_path, capsys, monkeypatch
):
    path = write_pairs(tmp_path)
    given = {"model": model, "source": path, "batch_size": 8, "dtype": "float32"}
    assert run(**given, output=tmp_path / "folder") == 0
    known = EmbeddingFolder(tmp_path / "folder")
    assert run(**given, output=tmp_path / "a.npy") == 0
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), known.read(0, 4))
    assert (tmp_path / "a.keys").read_text() == "00\n01\n02\n10\n"

    with monkeypatch.context() as broken:
        broken.setattr("big_align.data.precomputed.single_files.write_npy", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(**given, output=tmp_path / "b.npy")
    assert not (tmp_path / "b.npy").exists()
    capsys.readouterr()
    assert run(**given, output=tmp_path / "b.npy") == 0
    assert "0 of 4 images embedded now" in capsys.readouterr().out
    assert (tmp_path / "b.npy").read_bytes() == (tmp_path / "a.npy").read_bytes()

    assert run(**given, output=tmp_path / "a.npy") == 1
    assert "a.npy is there: remove it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"column": "title"}, "--column and --key_column are for texts: give --what=text"),
        ({"what": "text", "transform": "resize(8)"}, "--transform is for images"),
        ({"what": "text", "key_column": "id"}, "--key_column is beside --column"),
        ({"output": "out.csv"}, "--output=out.csv: a file that is written is .npy or .parquet"),
        ({"output": "out.NPZ"}, "--output=out.NPZ: a file that is written is .npy or .parquet"),
        ({"what": "text", "column": "titel"}, "no such column (did you mean 'title'?); it has: id"),
        ({"what": "text", "column": "title", "key_column": "no"}, "--key_column=no: "),
        ({"what": "text", "column": "price"}, "column 'price' holds 1.5, which is no text"),
        ({"what": "text", "column": "a", "source": "x.txt"}, "no file matches 'x.txt'"),
        ({"what": "text", "source": "empty.txt"}, "there are no texts to embed"),
        ({"what": "text", "source": "empty.txt", "column": "a"}, "which empty.txt is not"),
        ({"what": "text", "source": "broken.parquet", "column": "a"}, "broken.parquet cannot be r"),
    ],
)
def test_bad_input_is_one_line(given, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"id": ["a"], "title": ["b"], "price": [1.5]}), "items.parquet")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    if given.get("column") == "price":
        pq.write_table(pa.table({"price": [0.0, 1.5]}), "zero.parquet")
        for name, first in (("items", 1.5), ("zero", 0.0)):
            with pytest.raises(UserError, match=f"column 'price' holds {first}"):
                text_shards.list_column(f"{name}.parquet", "price").read(0)
        return
    assert run(**({"model": "none", "source": "items.parquet", "output": "out"} | given)) in (1, 2)
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ") and message in line
    assert not [*tmp_path.glob("out*")]


@pytest.mark.slow
def test_a_folder_is_of_one_tokenizer_and_one_architecture(model, tmp_path, lines, capsys):
    given = {"what": "text", "source": lines, "output": tmp_path / "out"}
    assert run(model=model, **given) == 0
    loaded = big_align.load(model)
    text = DUAL["text"]
    for name, changed, message in (
        ("words", {"tokenizer": TOKENIZER | {"words": TOKENIZER["words"][::-1]}}, "fingerprint is"),
        ("heads", {"node": DUAL | {"text": text | {"heads": 4}}}, "architecture is"),
    ):
        other = LoadedModel.of(loaded, **changed)
        weights.save(tmp_path / name, other, "big_align")
        assert run(model=tmp_path / name, **given) == 1
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_without_texts_is_named(tmp_path, lines, capsys):
    from tests.tools.test_embed import save_model

    model = save_model(tmp_path / "tower")
    assert run(model=model, what="text", source=lines, output=tmp_path / "out") == 1
    assert "text" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert json.loads((tmp_path / "tower" / "config.json").read_text())["tokenizer"] is None


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_row_without_a_key_is_told(tmp_path, ending):
    """Nobody could tell what its embedding is of."""
    path = tmp_path / f"items.{ending}"
    if ending == "csv":
        path.write_text("id,title\n1,a dog\n,a cat\n")
    else:
        pq.write_table(pa.table({"id": ["1", None], "title": ["a dog", "a cat"]}), path)
    with pytest.raises(UserError, match=f"items.{ending}: row 2 has no key in column 'id'; give"):
        read(text_shards.list_column(str(path), "title", "id"))
    assert read(text_shards.list_column(str(path), "title"))[0] == ["1", "2"]
