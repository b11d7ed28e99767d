"""The order of a source, and what stands in for broken examples."""

import itertools

import numpy as np
import pytest
from loaders import assert_equal, make_loader
from samples import BROKEN, break_some, make_array

from big_align.core.errors import BrokenDataError, UserError
from big_align.data.examples import BrokenExample
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.loading.shuffle import PositionRandom, Shuffle, substitutes
from big_align.data.loading.stream import ExampleStream
from big_align.data.sources.array_source import ArraySource
from big_align.data.sources.tar_source import TarSource
from big_align.data.text.tokenizers import WordTokenizer


def visit(stream, step, rows, broken=(), broken_later=()):
    """The numbers that stand in rows of a batch, and the random number of each."""

    def draw(place, rng):
        if place[1] in broken:
            raise BrokenExample("broken")
        return place[1], rng.random()

    def finish(numbers, drawn):
        assert len(numbers) == len(drawn)
        return [BrokenExample("broken") if n in broken_later else None for n, _ in drawn]

    return list(zip(*stream.visit(step, np.array(rows), draw, finish), strict=True))


def make_stream(size=20, batch_size=4, seed=3) -> ExampleStream:
    return ExampleStream(make_array(size), batch_size, seed, max_broken_fraction=1.0)


def test_a_substitute_stands_half_an_epoch_away():
    """By hand: the batches of 20 examples are 0 to 4, half of them is 2."""
    assert list(substitutes(3, 20, 4)) == [11, 15, 19, 7]
    assert list(substitutes(43, 20, 4)) == [51, 55, 59, 47]
    assert list(substitutes(9, 22, 4)) == [17, 21, 3, 13]  # 25 is 3 of the same epoch
    assert list(substitutes(1, 5, 4)) == [3, 4, 0, 2]  # no second batch
    far = next(substitutes(0, 1_000_000, 100))
    assert far == 500_000


@pytest.mark.parametrize(("size", "batch_size"), [(20, 4), (22, 4), (64, 8), (23, 11)])
def test_substitutes_are_neither_in_the_batch_nor_shared_by_it(size, batch_size):
    for step in range(2 * size // batch_size):
        batch = range(step * batch_size, (step + 1) * batch_size)
        if batch[0] // size != batch[-1] // size:
            continue  # two epochs in a batch
        for standing_in in zip(*(substitutes(n, size, batch_size) for n in batch), strict=True):
            assert len({*standing_in} | {*batch}) == 2 * batch_size
            assert {n // size for n in standing_in} == {batch[0] // size}


@pytest.mark.parametrize("when", ["broken", "broken_later"])
def test_what_replaces_a_broken_example_is_its_next_intact_substitute(when):
    order = Shuffle(np.array([20]), seed=3)(np.arange(40))[2]
    whole, _ = visit(make_stream(), 6, range(4))
    assert list(whole) == order[24:28].tolist()
    first, second, *_ = substitutes(25, 20, 4)
    stream = make_stream()
    numbers, randoms = visit(stream, 6, [1, 2], **{when: {order[25], order[first]}})
    assert numbers == (order[second], order[26]) and stream.broken == 2
    assert randoms[0] == PositionRandom(3, 25).random()  # those of its position
    assert visit(stream, 6, [2]) == [(order[26],), (PositionRandom(3, 26).random(),)]


def test_an_example_is_counted_as_broken_once():
    stream = make_stream()
    for step in range(10):
        visit(stream, step, range(4), broken={7}, broken_later={8})
    assert stream.broken == 2


@pytest.mark.parametrize("num_processes", [0, 2])
def test_broken_examples_are_replaced_and_counted(tmp_path, caplog, num_processes):
    source = break_some(tmp_path, BROKEN)
    words = WordTokenizer(("number", *map(str, range(200))), length=4)
    kept = {"tokenizer": words, "batch_size": 20, "max_broken_fraction": 0.1}
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
    kept = {"tokenizer": words, "batch_size": 40, "max_broken_fraction": 1.0}
    with make_loader(source, **kept) as loader:
        for batch in itertools.islice(loader.iterate(0), 5):
            assert len(set(batch["text"][:, 2].tolist())) == 40


def test_too_many_broken_examples_stop_and_name_the_shard(tmp_path):
    source = break_some(tmp_path, {3, 77, *range(120, 130)})
    words = WordTokenizer(("number",), length=4)
    with make_loader(source, tokenizer=words, batch_size=20, max_broken_fraction=0.05) as loader:
        # the eleventh stops the run; another thread may have found the last one by then
        message = "1[12] of 200 examples.*train-03.tar.*raise max_broken_fraction"
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
            make(source, max_broken_fraction=0.01)
        assert "max_broken_fraction=0.01" in str(error.value)


def test_nothing_but_broken_examples_stops(tmp_path):
    source = break_some(tmp_path, set(range(200)))
    with pytest.raises(BrokenDataError, match="broken"):
        make_loader(source, max_broken_fraction=1.0)


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match="batch_size is 9 and the source has 8 examples"):
        ExampleStream(make_array(8), batch_size=9)


def test_an_empty_source_is_refused():
    with pytest.raises(UserError, match="the source has no examples"):
        ExampleStream(ArraySource(np.zeros((0, 8, 8, 3), np.uint8), []), batch_size=8)
