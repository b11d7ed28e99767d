import io
import json
import subprocess
import sys
import tarfile

import pytest

from big_align.config.components.source_flags import open_captions
from big_align.data.text import vocabulary
from big_align.data.text.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from big_align.data.text.word_counts import count_texts, weigh_languages
from big_align.tools import build_vocab

CAPTIONS = ["A cat sat on the mat.", "Cats, naïve cats & dogs!", "the dogs sit on mats"] * 20


@pytest.fixture
def captions(tmp_path) -> str:
    path = tmp_path / "captions.txt"
    path.write_text("\n".join(CAPTIONS) + "\n\n", encoding="utf-8")
    return str(path)


def test_words_are_counted_as_bert_splits_them():
    counts = weigh_languages(count_texts(CAPTIONS))
    assert counts["cats"] == 40 and counts["naive"] == 20 and counts["."] == 20
    assert weigh_languages(count_texts(CAPTIONS, lowercase=False))["Cats"] == 20


def test_the_tool_writes_a_vocabulary_that_spells_every_caption(captions, tmp_path, capsys):
    output = str(tmp_path / "vocabulary.txt")
    arguments = [f"--source={captions}", "--size=120", f"--output={output}"]
    assert build_vocab.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "pieces from" in printed and "100.0000% of all; 0 rarer ones dropped\n" in printed
    pieces = open(output, encoding="utf-8").read().splitlines()
    assert tuple(pieces[:5]) == SPECIAL_TOKENS
    assert len(set(pieces)) == len(pieces) <= 120
    assert {"cat", "dogs", "naive"} <= set(pieces)
    text, _ = WordPieceTokenizer(output, 32)(CAPTIONS)
    assert not (text == 1).any()
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("tmp")] == []


def test_languages_of_a_config_are_counted_by_its_temperature(tmp_path, capsys):
    """The one German text counts as much as the 63 English ones."""
    members = []
    for number in range(32):
        texts = {"en": ["a dog", "a cat"], "de": ["zwei hunde"] if number == 5 else None}
        members.append((f"{number:05d}.png", b""))
        members.append((f"{number:05d}.json", json.dumps(texts).encode()))
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    output = tmp_path / "v.txt"
    arguments = [
        "--config=configs/own_pairs.py", f"--config.data.source.path={tmp_path}/x.tar",
        "--config.data.source.caption=json.{en,de}", "--config.data.hold_out=0",
        f"--output={output}", "--size=100", "--character_coverage=1",
    ]  # fmt: skip
    words = {}
    for temperature in ("none", "1", "inf", "3"):
        given = {"none": [], "3": ["--temperature=3"]}
        drawn = given.get(temperature, [f"--config.data.language_temperature={temperature}"])
        assert build_vocab.main([*arguments, *drawn]) == 0
        table = capsys.readouterr().out.splitlines()[-3:]
        assert [line.split()[:2] for line in table[1:]] == [["en", "64"], ["de", "1"]]
        assert all(line.endswith(" 0.000%") for line in table[1:])
        words[temperature] = {"zwei", "hunde"} & set(output.read_text().splitlines())
    assert words == {"none": set(), "1": set(), "inf": {"zwei", "hunde"}, "3": {"zwei", "hunde"}}


@pytest.mark.slow
def test_real_captions_are_spelled_by_pieces(data_dir, tmp_path):
    read, _ = open_captions(f"{data_dir}/flickr8k/dev-*.tar", arguments=["caption=json.captions"])
    kept = list(read())
    assert len(kept) == 5000
    pieces = vocabulary.learn_vocabulary(weigh_languages(count_texts(kept)), 1000, 1.0).pieces
    assert 950 <= len(pieces) <= 1000
    vocabulary.write_vocabulary(pieces, str(tmp_path / "v.txt"))
    text, text_mask = WordPieceTokenizer(str(tmp_path / "v.txt"), 64)(kept)
    assert not (text == 1).any()
    assert text_mask.sum() < 1.5 * 5000 * 14  # 12 words and two marks a caption: most are whole


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"source": "none-*.tar"}, "no file matches 'none-*.tar'"),
        (
            {"source": "captions"},
            "--source=captions: there is no such file or folder",
        ),
        ({"size": "5"}, "size is 5; it must be above the 5 special tokens"),
        ({"size": "20"}, "17 different characters within 99.99% of all: these need a size of 35"),
        ({"character_coverage": "1.5"}, "character_coverage is 1.5; it must be above 0 and at"),
        ({"temperature": "0"}, "temperature is 0; it must be above 0, inf for equal shares"),
        ({"output": f"{__file__}/v.txt"}, "test_build_vocab.py"),
        ({"output": ""}, "--output= is a folder; name a file in it"),
        ({"source": "tfds:mnist"}, "does not read as tfds:NAME:SPLIT"),
    ],
)
def test_bad_input_is_one_line(captions, tmp_path, capsys, changed, message):
    options = {"source": captions, "size": "100", "output": str(tmp_path / "v.txt"), **changed}
    assert build_vocab.main([f"--{name}={value}" for name, value in options.items()]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert message in lines[-1] and lines[-1].startswith("error: ")
    assert not (tmp_path / "v.txt").exists()


@pytest.mark.parametrize("flag", ["size=5", "character_coverage=nan", "temperature=-1"])
def test_a_number_out_of_range_is_told_before_the_source_is_read(tmp_path, capsys, flag):
    source, output = f"--source={tmp_path}/none-*.tar", f"--output={tmp_path}/new/v.txt"
    assert build_vocab.main([source, output, f"--{flag}"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{flag.partition('=')[0]} is " in line and not (tmp_path / "new").exists()


@pytest.mark.slow
def test_help_explains_without_loading_tensorflow():
    done = subprocess.run(
        [sys.executable, "-m", "big_align.tools.build_vocab", "--help"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "--source" in done.stdout and "one piece per line" in done.stdout
