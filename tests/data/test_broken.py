"""How many examples may be broken: a fraction of those that were read."""

import numpy as np
import pytest

from big_align.core.errors import BrokenDataError
from big_align.data.examples import BrokenExample
from big_align.data.loading.broken import READ_BEFORE_STOP, BrokenTally
from big_align.data.loading.stream import ExampleStream
from big_align.data.sources.array_source import ArraySource

SIZE = 10_000


def make_source(size=SIZE, left_out=0) -> ArraySource:
    source = ArraySource(np.zeros((size, 1, 1, 3), np.uint8), [[]] * size)
    source.broken = np.array([left_out])
    return source


def add(tally: BrokenTally, *numbers: int) -> None:
    for number in numbers:
        tally.add(0, number, BrokenExample("broken"))


def test_one_more_than_the_fraction_of_what_was_read_stops():
    tally = BrokenTally(make_source(), max_fraction=0.01)
    tally.count_read(3000)
    add(tally, *range(30), *range(30))
    assert tally.count == 30
    with pytest.raises(BrokenDataError, match="31 of 3000 examples .* array .31 broken there"):
        add(tally, 30)


def test_the_log_names_an_example_once(caplog):
    tally = BrokenTally(make_source(), max_fraction=0.01)
    with caplog.at_level("WARNING"):
        add(tally, 7, 8, 7)
    assert [record.getMessage() for record in caplog.records] == [
        "skipped array: 7: broken (1 skipped so far)",
        "skipped array: 8: broken (2 skipped so far)",
    ]


def test_few_examples_are_taken_for_2000_or_for_all():
    tally = BrokenTally(make_source(), max_fraction=0.01)
    add(tally, *range(20))
    with pytest.raises(BrokenDataError, match=f"21 of {READ_BEFORE_STOP} examples"):
        add(tally, 20)
    tally = BrokenTally(make_source(500), max_fraction=0.01)
    tally.count_read(100_000)  # many epochs are no more examples
    add(tally, *range(5))
    with pytest.raises(BrokenDataError, match="6 of 500 examples"):
        add(tally, 5)


def test_two_are_never_too_many_unless_none_may_be_broken():
    """Of twelve held-out examples, one is more than a hundredth, and says nothing of the data."""
    tally = BrokenTally(make_source(10, left_out=1), max_fraction=0.01)
    add(tally, 0)
    with pytest.raises(BrokenDataError, match="3 of 11 examples"):
        add(tally, 1)
    tally = BrokenTally(make_source(12), max_fraction=0.0)
    with pytest.raises(BrokenDataError, match="1 of 12 examples"):
        add(tally, 0)


def test_what_the_source_left_out_counts():
    tally = BrokenTally(make_source(900, left_out=9), max_fraction=0.01)
    assert tally.count == 9
    with pytest.raises(BrokenDataError, match="10 of 909 examples"):
        add(tally, 0)
    with pytest.raises(BrokenDataError, match="10 of 910 examples"):
        BrokenTally(make_source(900, left_out=10), max_fraction=0.01)


def test_what_was_left_out_is_of_all_examples_and_not_of_those_read():
    """90 and 10 of 10,090 are few, though they are many beside the 2000 that count as read."""
    tally = BrokenTally(make_source(left_out=90), max_fraction=0.01)
    tally.count_read(1000)
    add(tally, *range(10))
    assert tally.count == 100
    with pytest.raises(BrokenDataError, match="101 of 10090 examples"):
        add(tally, 10)
    tally = BrokenTally(make_source(left_out=50), max_fraction=0.01)
    add(tally, *range(20))
    with pytest.raises(BrokenDataError, match="21 of 2000 examples"):
        add(tally, 20)


def count_broken(fraction: float, max_fraction: float, steps: int) -> int:
    """Visits batches of 500 of a source with a fraction of broken examples, evenly spread."""
    stream = ExampleStream(make_source(), 500, max_broken_fraction=max_fraction)
    broken = np.random.default_rng(0).random(SIZE) < fraction

    def draw(location, rng):
        if broken[location[1]]:
            raise BrokenExample("broken")

    for step in range(steps):
        stream.visit(step, np.arange(500), draw, lambda numbers, drawn: [None] * len(numbers))
    return stream.broken


def test_a_stream_counts_every_row_as_read():
    """100 of 10,000; were they not counted, the 41st of 2000 would stop."""
    assert 60 < count_broken(0.01, 0.02, steps=20) < 140


@pytest.mark.slow
def test_a_stream_counts_substitutes_as_read():
    """45 of 100 read are broken: were rows alone counted, it would seem to be 75 of 100."""
    assert count_broken(0.45, 0.6, steps=8) > 0.6 * 8 * 500
