"""Words that Beam counts make the vocabulary that a loop makes."""

import io
import json
import pathlib

import pytest
from PIL import Image

from big_align.data.text.word_counts import count_texts
from big_align.tools import build_vocab
from tests.data.samples import write_tar

TEXTS = {
    "en": ["A dog sat on the mat.", "naïve cats"],
    "de": ["Zwei Hunde, Zwei Katzen"],
    "": ["the dogs sit"],
}


@pytest.fixture(autouse=True)
def needs_beam():
    pytest.importorskip("apache_beam", reason="Apache Beam is not installed (.[prepare])")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    pixels = io.BytesIO()
    Image.new("RGB", (4, 4)).save(pixels, "PNG")
    for shard in range(3):
        members = []
        for number in range(5 + shard):
            texts = {
                language: [f"{text} {'ab'[number % 2] * shard}" for text in several]
                for language, several in TEXTS.items()
            }
            key = f"{shard}{number:04d}"
            members += [(f"{key}.png", pixels.getvalue())]
            members += [(f"{key}.json", json.dumps({"c": texts} if number else {}).encode())]
        write_tar(folder / f"x-{shard:05d}.tar", members)
    return f"--source={folder}/x-*.tar", "--source_argument=caption=json.c.{en,de}"


def build(capsys, output, *flags):
    status = build_vocab.main([f"--output={output}", "--size=80", *flags])
    printed = capsys.readouterr()
    return status, printed.out.replace(str(output), "OUTPUT"), printed.err


def test_the_vocabulary_is_that_of_a_loop(shards, tmp_path, capsys):
    plain = build(capsys, tmp_path / "plain.txt", *shards, "--temperature=3")
    given = *shards, "--temperature=3", "--runner=DirectRunner"
    on_beam = build(capsys, tmp_path / "beam.txt", *given)
    assert plain[:2] == on_beam[:2] and plain[0] == 0
    assert "en                 30" in plain[1] and "de                 15" in plain[1]
    plain, on_beam = (pathlib.Path(tmp_path, f"{name}.txt") for name in ("plain", "beam"))
    assert plain.read_bytes() == on_beam.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beam.txt", "plain.txt"]


@pytest.mark.slow
def test_two_processes_count_the_same(shards, tmp_path, capsys):
    workers = "--direct_running_mode=multi_processing", "--direct_num_workers=2"
    plain = build(capsys, tmp_path / "plain.txt", *shards)
    on_beam = build(capsys, tmp_path / "beam.txt", *shards, "--runner=DirectRunner", *workers)
    assert plain[:2] == on_beam[:2] and plain[0] == 0


def test_counts_of_text_files_are_those_of_a_loop(tmp_path):
    from big_align.prepare.on_beam import pipelines
    from big_align.prepare.words import counting

    lines = ["one dog", "Two Dogs [a]", "", "one"]
    (tmp_path / "a[1].txt").write_text("\n".join(lines))
    (tmp_path / "b.txt").write_text("one more\n")
    corpus = counting.find_corpus(f"{tmp_path}/*.txt", None, ())
    options = pipelines.read_options(["--runner=DirectRunner"])
    for lowercase in (True, False):
        folder = str(tmp_path / f"counts{lowercase}")
        counting.count_words(corpus, lowercase, folder, options)
        expected = count_texts([*filter(None, lines), "one more"], lowercase)
        assert counting.read_counts(folder) == expected
        assert expected[""].texts == 4 and expected[""].words["one"] == 3


def test_what_cannot_be_read_is_counted(shards, tmp_path, capsys, caplog):
    table = tmp_path / "captions.csv"
    rows = [f"{n}.jpg,a dog number {n}" for n in range(4)]
    table.write_text("\n".join(["image,caption", *rows[:2], "only one field", *rows[2:]]) + "\n")
    for n in range(4):
        Image.new("RGB", (4, 4)).save(tmp_path / f"{n}.jpg")
    status, printed, error = build(
        capsys, tmp_path / "v.txt", f"--source={table}", "--runner=DirectRunner"
    )
    assert status == 0, error
    assert printed.splitlines()[-1].split()[:2] == ["all", "4"]
    assert "1 broken examples were left out" in caplog.text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--runner=Driect"], "--runner=Driect: "),
        (["--runner=DirectRunner", "--sise=3"], "unknown flag --sise"),
        (["--runner=DirectRunner", "--environment_type=PROCESS"], "process_command"),
        (["--runner=DirectRunner", "--work={full}"], "is not an empty folder: give another, or"),
        (["--runner=DirectRunner", "--work={full}/mine"], "mine is not an empty folder: give"),
        (["--runner=DirectRunner", "--source_argument=caption=json.none"], "has a caption"),
    ],
)
def test_bad_flags_are_one_line(shards, tmp_path, capsys, flags, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("kept")
    flags = [flag.format(full=tmp_path / "full") for flag in flags]
    status, _, error = build(capsys, tmp_path / "v.txt", *shards, *flags)
    assert status == 1 and error.startswith("error: ") and message in error
    assert error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]
    assert (tmp_path / "full" / "mine").read_text() == "kept"


def test_a_file_that_cannot_be_opened_is_named(tmp_path, capsys):
    (tmp_path / "x.parquet").write_bytes(b"no table")
    flags = f"--source={tmp_path}/x.parquet", "--runner=DirectRunner"
    status, _, error = build(capsys, tmp_path / "v.txt", *flags)
    assert status == 1 and error.startswith("error: ") and "x.parquet" in error
    assert error.count("\n") == 1


def test_a_config_is_not_counted_on_beam(capsys):
    with pytest.raises(SystemExit):
        build_vocab.main(["--config=configs/quickstart.py", "--output=v", "--runner=DirectRunner"])
    assert "--runner counts the words of a --source, not those of a --config" in (
        capsys.readouterr().err
    )
