"""The command that makes tag lists, and configs that name one."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from big_align.config.components import tables
from big_align.core.errors import ConfigError
from big_align.data.sources.digits import DIGIT_WORDS
from big_align.data.tags.tag_list import read_tag_list
from big_align.objectives.clip import Clip
from big_align.runs import build, check
from big_align.tools import build_tags
from tests import tiny_config

CAPTIONS = [
    *["a dog on the beach"] * 4, *["Dogs!"] * 4, *["two hot dogs and a man"] * 7, *["a man"] * 3,
    *["a frisbee in the snow"] * 6, *["one rare zebra"],
]  # fmt: skip
WORDS = "['dog','hot','man','frisbee','snow','zebra']"


@pytest.fixture(autouse=True)
def wordnet(data_dir, monkeypatch):
    """Where NLTK finds WordNet."""
    monkeypatch.setenv("NLTK_DATA", str(data_dir / "nltk_data"))
    monkeypatch.setattr("nltk.data.path", [str(data_dir / "nltk_data")])


@pytest.fixture
def arguments(tmp_path):
    """The command line of a list of these captions."""
    (tmp_path / "captions.txt").write_text("\n".join(CAPTIONS))
    (tmp_path / "names.csv").write_text("/m/0,Dog\n/m/1,Hot dog\n/m/2,Man\n/m/3,Zebra\n/m/4,Snow\n")

    def make(**changed) -> list[str]:
        options = {
            "source_name": "text",
            "source": tmp_path / "captions.txt",
            "names": tmp_path / "names.csv",
            "tokenizer": "words",
            "tokenizer_argument": f"words={WORDS}",
            "output": tmp_path / "tags.json",
        } | changed
        rest = ["--tokenizer_argument=length=8"]
        return rest + [f"--{k}={value}" for k, value in options.items() if value is not None]

    return make


@pytest.mark.slow
def test_a_list_of_names_is_counted_cut_and_written(arguments, tmp_path, capsys):
    assert build_tags.main(arguments(remove_top=1, max_tags=2)) == 0
    told = capsys.readouterr().out
    assert "left out as most frequent: man" in told
    assert "tags.json: 2 tags, 1 of several words, of 5 names, in 25 captions" in told
    tags = read_tag_list(str(tmp_path / "tags.json"))
    assert tags.names == ("dog", "hot dog") and tags.counts.tolist() == [8, 7]
    assert tags.removed == ("man",)
    assert tags.tokens[tags.token_mask].tolist() == [3, 4, 3]
    made_by = json.loads((tmp_path / "tags.json").read_text())["made_by"]
    assert made_by["min_count"] == 6 and made_by["source"]["name"] == "text"


@pytest.mark.slow
def test_a_compound_that_is_left_out_hides_no_noun(arguments, tmp_path, capsys):
    """A brown bear is a bear, so it counts as one; with all compounds it counts as itself."""
    (tmp_path / "captions.txt").write_text("a brown bear\n" * 7 + "a bear\n" * 6)
    (tmp_path / "names.csv").write_text("/m/0,Bear\n/m/1,Brown bear\n")
    words = {"tokenizer_argument": "words=['bear','brown']"}
    counts = {}
    for compounds in (None, "all"):
        assert build_tags.main([*arguments(**words, compounds=compounds), "--overwrite"]) == 0
        tags = read_tag_list(str(tmp_path / "tags.json"))
        counts[compounds] = dict(zip(tags.names, tags.counts.tolist(), strict=True))
        told = "left out by --compounds=without_hypernyms_inside: 1 of 2 names"
        assert (told in capsys.readouterr().out) == (compounds is None)
    assert counts == {None: {"bear": 13}, "all": {"brown bear": 7, "bear": 6}}


@pytest.mark.slow
def test_without_names_the_nouns_of_the_captions_are_tags(arguments, tmp_path):
    assert build_tags.main(arguments(names=None)) == 0
    tags = read_tag_list(str(tmp_path / "tags.json"))
    assert dict(zip(tags.names, tags.counts.tolist(), strict=True)) == {
        "man": 10, "dog": 8, "hot dog": 7, "frisbee": 6, "snow": 6,
    }  # fmt: skip


@pytest.mark.slow
def test_first_captions_of_real_photographs(data_dir, arguments, tmp_path):
    """The first of five captions has fewer tags; every count is at most that of all captions."""
    (tmp_path / "names.txt").write_text("dog\nman\nsoccer ball\nball\nunicorn\n")
    real = {
        "source_name": "tar",
        "source": data_dir / "flickr8k" / "dev-00000.tar",
        "names": tmp_path / "names.txt",
        "tokenizer": "wordpiece",
        "compounds": "all",
    }
    words = f"--tokenizer_argument=vocabulary={data_dir}/text/bert-base-uncased-vocab.txt"
    counts = []
    for used in (1, 5):
        line = arguments(**real, tokenizer_argument="lowercase=True", captions_used=used)
        more = ["--overwrite", words, "--source_argument=caption=json.captions"]
        assert build_tags.main([*line, *more]) == 0
        tags = read_tag_list(str(tmp_path / "tags.json"))
        counts.append(dict(zip(tags.names, tags.counts.tolist(), strict=True)))
    one, five = counts
    assert set(five) == {"dog", "man", "soccer ball", "ball"} >= set(one)
    assert all(one[name] < five[name] <= 5 * 1000 for name in one)
    assert five["dog"] > five["soccer ball"] >= 6


def test_a_folder_that_cannot_be_written_to_is_told_before_captions_are_read(
    arguments, capsys, monkeypatch
):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert build_tags.main(arguments(source="none.txt")) == 1
    assert "cannot be written to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"output": "tags.txt"}, "must end in .json"),
        ({"min_count": 0}, "--min_count=0 must be at least 1"),
        ({"min_count": 99}, "no tag remains: of 5 names 0 occur in at least 99 of 25 captions"),
        ({"min_count": 1, "tokenizer_argument": "words=['dog','hot','man','snow']"}, "'zebra'"),
        ({"tokenizer": "word"}, "did you mean 'words'"),
        ({"tokenizer_argument": "words"}, "does not read as NAME=VALUE"),
        ({"names": "cifar"}, "cifar10"),
        ({"source": "none.txt"}, "no file matches 'none.txt'"),
    ],
)
def test_mistakes_are_one_line(arguments, changed, message, capsys):
    assert build_tags.main(arguments(**changed)) in (1, 2)
    told = capsys.readouterr().err.splitlines()
    assert told[-1].startswith("error: ") and message in told[-1]


def test_an_output_is_replaced_only_when_asked(arguments, capsys):
    assert build_tags.main(arguments()) == 0
    assert build_tags.main(arguments()) == 1
    assert "--overwrite replaces it" in capsys.readouterr().err


def test_without_word_net_the_message_says_how_to_get_it(arguments, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("nltk.data.path", [str(tmp_path)])
    for names in ({}, {"names": None}):
        assert build_tags.main(arguments(**names)) == 1
        assert "nltk.downloader wordnet" in capsys.readouterr().err


def test_the_module_has_a_help_page():
    line = [sys.executable, "-m", "big_align.tools.build_tags", "--help"]
    assert "--remove_top" in subprocess.run(line, capture_output=True, text=True, check=True).stdout


class Recognizer(Clip):
    """An objective that takes a tag list."""

    def __init__(self, model, mesh, tags):
        super().__init__(model, mesh)
        self.tags = tags


@pytest.fixture
def config(arguments, tmp_path):
    """A config of digits whose tags are the digits."""
    (tmp_path / "names.csv").write_text("name\none\ntwo\nthree\nnine\n")
    (tmp_path / "captions.txt").write_text("one\none\ntwo\ntwo\nthree\nnine\n")
    line = arguments(min_count=1, tokenizer_argument=f"words={list(DIGIT_WORDS)}")
    assert build_tags.main(line) == 0
    config = tiny_config.get_config()
    config.data.tags.path = str(tmp_path / "tags.json")
    config.data.tags.truth = True
    return config


def test_a_config_brings_tags_into_batches(config):
    tokenizer = build.build_tokenizer(config)
    names = read_tag_list(config.data.tags.path).names
    with build.build_train_loader(config, tokenizer) as loader:
        batch = loader.batch(0)
    example = build.example_batch(config, tokenizer)
    for name in ("tags", "true_tags"):
        assert example[name].shape == (1, *batch[name].shape[1:])
        assert example[name].dtype == batch[name].dtype
    words = {number: word for number, word in enumerate(DIGIT_WORDS, start=3)}
    for text, tags in zip(batch["text"], batch["tags"], strict=True):
        expected = {names.index(words[id]) for id in text.tolist() if words.get(id) in names}
        assert set(tags.tolist()) - {-1} == expected
    assert (batch["tags"] >= 0).any()
    record = build.describe_run(config, tokenizer)
    config.data.tags.path = None
    with build.build_train_loader(config, tokenizer) as loader:
        assert "tags" not in loader.batch(0)
    assert build.describe_run(config, tokenizer)["tags"] == "" != record["tags"]


def test_an_objective_over_tags_is_given_the_list(config, monkeypatch):
    monkeypatch.setitem(tables.OBJECTIVES, "recognizer", f"{__name__}:Recognizer")
    config.objective = dict(name="recognizer")
    mesh, tokenizer = build.build_mesh(config), build.build_tokenizer(config)
    objective = build.build_objective(config, mesh, tokenizer)
    assert objective.tags.names == ("one", "two", "three", "nine")
    np.testing.assert_array_equal(objective.tags.counts, [2, 2, 1, 1])
    blank = check.BlankTokenizer(config.tokenizer)  # knows no vocabulary
    assert build.build_objective(config, mesh, blank).tags.names == objective.tags.names
    config.tokenizer.words = tuple(reversed(DIGIT_WORDS))
    with pytest.raises(ConfigError, match="config.data.tags.path: .* for another vocabulary"):
        build.build_objective(config, mesh, build.build_tokenizer(config))
    config.data.tags.path = None
    with pytest.raises(ConfigError, match="config.data.tags.path is missing: .*build_tags"):
        build.build_objective(config, mesh, tokenizer)


def test_wrong_settings_of_tags_are_found_before_data_is_read(config):
    check.check_config(config)
    with config.data.unlocked():
        config.data.tags = dict(max_tags="many")
    with pytest.raises(ConfigError, match="config.data.tags.max_tags = 'many' is not of type int"):
        check.check_config(config)
    with config.data.unlocked():
        config.data.tags = dict(path="tags.json", max_tags=0)
    with pytest.raises(ConfigError, match="config.data.tags.max_tags = 0 must be at least 1"):
        check.check_config(config)
    with config.data.unlocked():
        config.data.tags = dict(path="tags.json")
        config.data.captions_per_image = 0
    with pytest.raises(ConfigError, match="config.data.captions_per_image = 0 reads no texts, so"):
        check.check_config(config)
    with config.data.unlocked():
        config.data.tags = dict(paths="x")
    with pytest.raises(ConfigError, match="config.data.tags.paths is unknown .did you mean 'path'"):
        check.check_config(config)
