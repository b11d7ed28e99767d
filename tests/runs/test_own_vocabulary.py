"""A vocabulary that a run learns from its own texts, once, before it starts."""

import numpy as np
import pytest

from big_align.config.overrides import load_config
from big_align.core.errors import UserError
from big_align.data.text import tokenizers
from big_align.runs import build, own_vocabulary
from big_align.tools import build_vocab
from tests.data.samples import make_members, write_tar


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    members = [m for number in range(160) for m in make_members(number)]
    return write_tar(tmp_path_factory.mktemp("pairs") / "pairs.tar", members)


def new_model(pairs, *flags):
    return load_config(f"own_pairs:{pairs},start=scratch,size=cores", *flags)


def test_it_is_the_vocabulary_that_the_tool_makes(tmp_path, pairs):
    config = new_model(pairs)
    taken = own_vocabulary.take_vocabulary(config, str(tmp_path / "run"))
    flags = f"--config=own_pairs:{pairs},start=scratch,size=cores", f"--output={tmp_path}/v.txt"
    assert build_vocab.main([*flags, f"--size={config.model.text.vocab_size}"]) == 0
    assert open(taken.tokenizer.vocabulary).read() == (tmp_path / "v.txt").read_text()
    assert config.tokenizer.vocabulary == own_vocabulary.FROM_DATA


def test_the_tower_has_a_row_for_each_piece_and_no_more(tmp_path, pairs):
    taken = own_vocabulary.take_vocabulary(new_model(pairs), str(tmp_path))
    tokenizer = build.build_tokenizer(taken)
    assert taken.model.text.vocab_size == tokenizer.vocab_size < 300
    small = own_vocabulary.take_vocabulary(
        new_model(pairs, "--config.model.text.vocab_size=40"), str(tmp_path / "small")
    )
    assert small.model.text.vocab_size <= 40


def test_a_run_that_continues_has_the_same(tmp_path, pairs, capsys):
    first = own_vocabulary.take_vocabulary(new_model(pairs), str(tmp_path))
    pieces = tokenizers.list_wordpieces(first.tokenizer.vocabulary)
    capsys.readouterr()
    grown = [m for number in range(400) for m in make_members(number)]
    more = write_tar(tmp_path / "more.tar", grown)
    again = own_vocabulary.take_vocabulary(new_model(more), str(tmp_path))
    assert tokenizers.list_wordpieces(again.tokenizer.vocabulary) == pieces
    assert capsys.readouterr().out.count("learned from") == 0


def test_a_loader_needs_no_workdir(pairs):
    with build.make_loader(new_model(pairs, "--config.batch_size=8")) as loader:
        batch = loader.batch(0)
    assert batch["text"].max() > 4 and np.all(batch["text_mask"][:, 0])


def test_other_vocabularies_stay_as_they_are(tmp_path):
    config = load_config("pretrained_flickr8k")
    assert own_vocabulary.take_vocabulary(config, str(tmp_path)) is config


def test_data_without_words_are_told(tmp_path):
    path = write_tar(tmp_path / "x.tar", [m for n in range(20) for m in make_members(n)])
    config = new_model(path, "--config.data.source.caption=")
    with pytest.raises(UserError, match="training data have no words: let the source read capt"):
        own_vocabulary.take_vocabulary(config, str(tmp_path))
    assert not (tmp_path / "files").exists()
