"""The order of a source, and what stands in for broken examples."""

import itertools

import numpy as np
import pytest
from loaders import assert_equal, make_loader
from samples import BROKEN, break_some, make_array

from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.loading.stream import ExampleStream
from big_align.data.sources.array_source import ArraySource
from big_align.data.sources.tar_source import TarSource
from big_align.data.text.tokenizers import WordTokenizer
from big_align.errors import BrokenDataError, UserError


@pytest.mark.parametrize("num_processes", [0, 2])
def test_broken_examples_are_replaced_and_counted(tmp_path, caplog, num_processes):
    source = break_some(tmp_path, BROKEN)
    words = WordTokenizer(("number", *map(str, range(200))), length=4)
    kept = {"tokenizer": words, "batch_size": 20, "max_broken_share": 0.1}
    processes = {"num_processes": num_processes}
    with make_loader(source, **kept, **processes) as loader, caplog.at_level("WARNING"):
        seen = []
        for batch in itertools.islice(loader.iterate(0), 10):
            shown = (batch["text"][:, 2] - 4).tolist()
            np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], shown)
            assert len(set(shown)) == 20  # no example is its own negative
            seen += shown
        assert loader.broken == len(BROKEN)
        assert set(range(200)) - set(seen) == BROKEN
        assert len(seen) == 200
        rows = np.array([5, 6, 9, 12, 13])
        with make_loader(source, rows=rows, num_threads=1, **kept) as part:
            for step in range(10):
                whole = loader.batch(step)
                assert_equal(part.batch(step), {name: x[rows] for name, x in whole.items()})
    for shard, number in ((0, 3), (1, 77), (3, 122)):
        assert f"train-{shard:02d}.tar: {number:06d}" in caplog.text


def test_two_broken_rows_of_a_batch_never_share_a_substitute(tmp_path):
    source = break_some(tmp_path, set(range(0, 200, 3)))
    words = WordTokenizer(("number", *map(str, range(200))), length=4)
    kept = {"tokenizer": words, "batch_size": 40, "max_broken_share": 1.0}
    with make_loader(source, **kept) as loader:
        for batch in itertools.islice(loader.iterate(0), 5):
            assert len(set(batch["text"][:, 2].tolist())) == 40


def test_too_many_broken_examples_stop_and_name_the_shard(tmp_path):
    source = break_some(tmp_path, {3, 77, *range(120, 130)})
    words = WordTokenizer(("number",), length=4)
    with make_loader(source, tokenizer=words, batch_size=20, max_broken_share=0.05) as loader:
        # the eleventh stops the run; another thread may have found the last one by then
        message = "1[12] of 200 examples.*train-03.tar.*raise max_broken_share"
        with pytest.raises(BrokenDataError, match=message):
            for _ in itertools.islice(loader.iterate(0), 100):
                pass


def test_a_shard_lost_while_indexing_stops_at_the_start(tmp_path):
    break_some(tmp_path, set())
    shard = tmp_path / "train-02.tar"
    shard.write_bytes(shard.read_bytes()[:5000])
    source = TarSource(f"{tmp_path}/train-*.tar")
    for make in (make_loader, lambda source, **_: EvalLoader(source, "", batch_size=4)):
        with pytest.raises(BrokenDataError, match="train-02.tar") as error:
            make(source, max_broken_share=0.01)
        assert "max_broken_share=0.01" in str(error.value)


def test_nothing_but_broken_examples_stops(tmp_path):
    source = break_some(tmp_path, set(range(200)))
    with pytest.raises(BrokenDataError, match="broken"):
        make_loader(source, max_broken_share=1.0)


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match="batch_size is 9 and the source has 8 examples"):
        ExampleStream(make_array(8), batch_size=9)


def test_an_empty_source_is_refused():
    with pytest.raises(UserError, match="the source has no examples"):
        ExampleStream(ArraySource(np.zeros((0, 8, 8, 3), np.uint8), []), batch_size=8)
