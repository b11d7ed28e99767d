"""Runs that train on a part of each long text, and evaluate and continue as others do."""

import itertools
import shutil

import numpy as np
import pytest

from big_align.config.kept_files import use_kept_files
from big_align.config.overrides import load_config
from big_align.core.errors import ConfigError
from big_align.runs import build, check, evaluate, train
from big_align.weights.transfer.settings import inherit_tokenizer
from tests.run_main import TINY, read_losses

LENGTH = 4  # of ids, of which one is [CLS]; the captions of digits have five or more
SHORT = f"--config.tokenizer.length={LENGTH}"
WAYS = ("random", "block", "syntax")
CAPTIONS = ["a scan of the digit one", "a handwritten 1", "the number one written by hand"]


def load(way, *flags):
    return load_config(TINY, SHORT, f"--config.tokenizer.shorten={way}", *flags)


def take(config, start, count):
    with build.make_loader(config) as loader:
        return list(itertools.islice(loader.iterate(start), count))


@pytest.mark.parametrize("way", WAYS)
def test_tf_data_has_the_batches_of_the_loader(way):
    from big_align.runs.pipelines import image_text  # TensorFlow takes seconds

    config = load(way)
    batches = image_text(config, 2).take(3).as_numpy_iterator()
    for one, two in zip(batches, take(config, 2, 3), strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], two[name])


def test_only_texts_differ_and_evaluation_has_the_same_tokenizer():
    plain = take(load("truncate"), 0, 4)
    tokenizer = build.build_tokenizer(load("truncate"))
    for way in WAYS:
        config = load(way)
        batches = take(config, 0, 4)
        assert any((a["text"] != b["text"]).any() for a, b in zip(batches, plain, strict=True))
        for one, two in zip(batches, plain, strict=True):
            for name in one.keys() - {"text"}:
                np.testing.assert_array_equal(one[name], two[name])
        made = build.build_tokenizer(config)
        assert made.fingerprint == tokenizer.fingerprint
        assert build.describe_run(config, made) == build.describe_run(load("truncate"), tokenizer)
        for one, two in zip(made(CAPTIONS), tokenizer(CAPTIONS), strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["random", "syntax"])
def test_a_run_on_short_texts_learns_and_continues_with_the_same_losses(way, tmp_path):
    flags = (
        f"--config.model.text.max_length={LENGTH}",
        "--config.total_steps=20",
        "--config.checkpoint.every=10",
    )
    train.run(load(way, *flags), str(tmp_path))
    losses = read_losses(tmp_path)
    assert len(losses) == 20
    numbers = [evaluate.run(load(w, *flags), str(tmp_path)) for w in (way, "truncate")]
    assert numbers[0] == numbers[1]
    assert np.mean([x for _, x in losses[-5:]]) < np.mean([x for _, x in losses[:5]])
    for step in (tmp_path / "checkpoints").iterdir():
        if step.name.isdecimal() and int(step.name) > 10:
            shutil.rmtree(step)
    train.run(load(way, *flags), str(tmp_path))
    assert read_losses(tmp_path) == losses


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["tokenizer.name=none"], "none has no field 'shorten'"),
        (["tokenizer.name=class_names"], "class_names has no field 'shorten'"),
        (["tokenizer.shorten=randm"], r"tokenizer: shorten = 'randm' is unknown.*known: truncate"),
        (["data.precomputed.text_embedding=x"], "data.precomputed.text_embedding has features of"),
        (["cached_features.towers=('text',)", "model.locked=('text',)"], "cached_features.towers"),
    ],
)
def test_what_cannot_be_shortened_is_refused_in_one_line(flags, message):
    with pytest.raises(ConfigError, match=message) as error:
        check.check_config(load("random", *(f"--config.{flag}" for flag in flags)))
    assert "\n" not in str(error.value)


def test_a_tagger_that_is_missing_is_told_before_a_run_and_not_to_an_evaluation(monkeypatch):
    from big_align.data.text import word_ranks

    word_ranks.load.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "textblob.en", None)
    with pytest.raises(ConfigError, match=r"^config.tokenizer: .*'big_align\[syntax\]"):
        check.check_config(load("syntax"))
    check.check_config(load("syntax"), training=False)
    assert build.build_tokenizer(load("syntax")).length == LENGTH


def test_a_model_does_not_hand_the_way_on_but_the_config_does():
    there = {"tokenizer": {"name": "clip", "merges": "m", "length": 8, "shorten": "block"}}
    for given, wanted in (({}, {}), ({"shorten": "random"}, {"shorten": "random"})):
        node = inherit_tokenizer(there, 77, {"name": "from_init", **given})
        assert node == {"name": "clip", "merges": "m", "length": 8, **wanted}


def test_another_tokenizer_keeps_the_way_and_a_file_of_its_name_is_no_vocabulary(tmp_path):
    config = load("random", "--config.tokenizer.name=clip")
    assert (config.tokenizer.name, config.tokenizer.shorten) == ("clip", "random")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "tokenizer.shorten").write_text("a file that someone calls random")
    use_kept_files(tmp_path, config)
    assert config.tokenizer.shorten == "random"
