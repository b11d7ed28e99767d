"""One's own pairs in any layout, from the command line alone; every number is of these pairs."""

import shlex

import fsspec
import pytest

from big_align.config.components.source_flags import open_source, write_source_flags
from big_align.config.overrides import load_config
from big_align.data.text.tokenizers import SPECIAL_TOKENS
from big_align.runs import build, check, dataset, train
from big_align.tools import build_vocab
from tests.data.samples import encode_image, make_members, make_pixels, write_tar

OWN = "configs/own_pairs.py"


@pytest.fixture
def pairs(tmp_path, monkeypatch):
    """A folder with a tar file of 160 pairs, which tells its commands as a user would."""
    monkeypatch.chdir(tmp_path)
    members = [m for number in range(160) for m in make_members(number)]
    return write_tar(tmp_path / "pairs.tar", members)


def own_config(tmp_path, pairs, *flags, argument="cores=2"):
    root = __file__.rpartition("/tests/")[0]
    path = f"--config.data.source.path={pairs}"
    vocabulary = f"--config.tokenizer.vocabulary={tmp_path}/made/vocabulary.txt"
    return load_config(f"{root}/{OWN}:{argument}", path, vocabulary, *flags)


def test_a_missing_vocabulary_is_told_with_the_command_that_makes_it(tmp_path, pairs, capsys):
    config = own_config(tmp_path, pairs)
    with pytest.raises(ValueError, match="there is no file .*vocabulary.txt; this makes") as error:
        build.build_tokenizer(config)
    words = shlex.split(str(error.value).partition("python -m ")[2])
    assert words[0] == "big_align.tools.build_vocab"
    assert build_vocab.main(words[1:]) == 0
    tokenizer = build.build_tokenizer(config)
    assert tokenizer.vocab_size <= config.model.text.vocab_size
    text, mask = tokenizer(["number 17"])
    assert 1 not in text[mask]  # no unknown piece


def test_a_vocabulary_in_a_bucket_is_read_there_and_made_here(tmp_path, pairs):
    path = f"memory://{tmp_path.name}/vocabulary.txt"
    config = own_config(tmp_path, pairs, f"--config.tokenizer.vocabulary={path}")
    with pytest.raises(ValueError, match=f"no file {path}; .*, to be copied there: ") as error:
        build.build_tokenizer(config)
    words = shlex.split(str(error.value).partition("python -m ")[2])
    assert words[-1] == "--output=vocabulary.txt"
    pieces = [*SPECIAL_TOKENS, "number"]
    fsspec.filesystem("memory").pipe(path, "\n".join(pieces).encode())
    assert build.build_tokenizer(config).vocab_size == len(pieces)


def test_a_missing_vocabulary_of_a_trained_text_tower_is_not_one_to_make(tmp_path, pairs):
    """Its ids would mean other pieces than those that the tower has learned."""
    for field in ("text", "all"):
        config = own_config(tmp_path, pairs, f"--config.init.{field}=bert")
        told = rf"vocabulary.txt; it has to be that of the text tower, config.init.{field} = 'bert'"
        with pytest.raises(ValueError, match=told) as error:
            build.build_tokenizer(config)
        assert "build_vocab" not in str(error.value)


def test_a_vocabulary_is_that_of_all_parts_and_of_nothing_that_is_held_out(tmp_path, pairs):
    """Both parts hold out the same images: keys say which."""
    root = __file__.rpartition("/tests/")[0]
    flags = [f"--config={root}/{OWN}", "--config.data.source={}", "--config.data.hold_out=0.5"]
    for name, caption in (("long", "txt"), ("short", "json.captions")):
        fields = f"weight=0.5 source.name=tar source.path={pairs} source.caption={caption}"
        flags += [f"--config.data.mixture.{name}.{field}" for field in fields.split()]
    config = load_config(flags[0].partition("=")[2], *flags[1:])
    parts = dataset.read_parts(config).values()
    sources = [dataset.open_source(part) for part in parts]
    numbers = [{s.key(0, n) for n in range(int(s.shard_sizes[0]))} for s in sources]
    assert numbers[0] == numbers[1] and 40 < len(numbers[0]) < 120
    assert build_vocab.main([*flags, f"--output={tmp_path}/v.txt", "--size=400"]) == 0
    learned = set((tmp_path / "v.txt").read_text().split())
    whole = {str(number) for number in range(160)} & learned
    seen = {str(int(key)) for key in numbers[0]} | set("0123456789")
    assert "number" in learned and whole <= seen


def test_what_a_config_names_can_be_written_as_flags(pairs):
    source, node = open_source(pairs, "tar", ["caption=json.captions", "label=cls"])
    words = shlex.split(write_source_flags(node))
    path, name, *arguments = (word.partition("=")[2] for word in words)
    other, again = open_source(path, name, arguments)
    assert again == node and source.read(0, 3) == other.read(0, 3)


@pytest.mark.slow
def test_it_trains_and_every_number_is_of_the_pairs(tmp_path, pairs):
    flags = ("--config.total_steps=2", "--config.batch_size=16", "--config.data.hold_out=0.2")
    flags += ("--config.schedule.warmup_steps=0",)
    config = own_config(tmp_path, pairs, *flags, argument="cores=2,classes=mnist")
    made = [f"--source={pairs}", f"--output={tmp_path}/made/vocabulary.txt", "--size=500"]
    assert build_vocab.main(made) == 0
    check.check_config(config)
    results = train.run(config, str(tmp_path / "run"))
    assert {name.partition("/")[0] for name in results} == {"retrieval", "zero_shot"}
    assert 0 <= results["zero_shot/top1"] <= results["zero_shot/top5"] <= 1


@pytest.mark.parametrize(
    ("flag", "argument", "message"),
    [
        ("--config.data.source.caption=", "cores=2", "reads no caption: pairs.tar: 0000"),
        ("--config.data.source.label=", "classes=mnist", "reads no label: pairs.tar: 0000"),
    ],
)
def test_what_the_evaluators_lack_is_told_before_training(tmp_path, pairs, flag, argument, message):
    config = own_config(tmp_path, pairs, flag, argument=argument)
    right = flag.replace("=", "=" + flag[:-1].rpartition(".")[2].upper())
    with pytest.raises(ValueError, match=f"{message}.*; write {right}"):
        build.build_evaluators(config, check.BlankTokenizer(config.tokenizer))


def test_a_source_without_the_field_is_not_told_to_set_it(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(40):
            image = encode_image(make_pixels(number))
            (tmp_path / name / f"{number}.png").write_bytes(image)
    flags = "--config.data.source.name=folder", f"--config.data.source.path={tmp_path}"
    config = load_config(f"{OWN}:cores=2", *flags)
    told = r"reads no caption: .* has none; --config.evaluators.NAME=\{\} leaves an evaluator out"
    with pytest.raises(ValueError, match=told):
        build.build_evaluators(config, check.BlankTokenizer(config.tokenizer))


@pytest.mark.parametrize("argument", ["cores=3", "cores", "classes=", "core=2"])
def test_an_unknown_argument_is_told_with_those_there_are(argument):
    with pytest.raises(ValueError, match="is not one of cores=2; classes=CLASSES"):
        load_config(f"{OWN}:{argument}")
