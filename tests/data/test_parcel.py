"""What processes are started with: pickled once, its arrays in memory once."""

import functools
import threading

import numpy as np
import pytest

from big_align.core.errors import UserError
from big_align.data.workers.channel import Remote
from big_align.data.workers.parcel import pack, unpack


class Tally:
    limit, name = 3, "tally"
    _secret = 5

    def add(self, number: int) -> int:
        return number + 1


class Caching:
    def __init__(self, array, path):
        self.array, self.lock, self.again = array, threading.Lock(), threading.RLock()
        self.mapped = np.load(path, mmap_mode="r")
        self.part = self.mapped[3:5]
        self.calls = 0
        self.double = functools.lru_cache(maxsize=2)(self._double)
        self.shared = shared

    def _double(self, number: int) -> int:
        self.calls += 1
        return 2 * number


@functools.lru_cache
def shared(number: int) -> int:
    return number


class Holder:
    def __init__(self, held):
        self.held = held


def send(content, staying=()):
    with pack(content, staying, Remote) as file:
        return unpack(file.fileno())


def test_arrays_are_mapped_and_writing_changes_no_other():
    arrays = {"a": np.arange(1000.0), "b": np.arange(7, dtype=np.uint8)[::2], "c": ["text", None]}
    with pack(arrays, (), Remote) as file:
        one, two = unpack(file.fileno()), unpack(file.fileno())
    for copy in (one, two):
        assert not copy["a"].flags.owndata and copy["a"].ctypes.data % 64 == 0
        np.testing.assert_array_equal(copy["a"], arrays["a"])
        np.testing.assert_array_equal(copy["b"], arrays["b"])
        assert copy["c"] == arrays["c"]
    one["a"][:] = 0
    np.testing.assert_array_equal(two["a"], arrays["a"])


def test_caches_are_empty_there_and_locks_and_maps_are_made_anew(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(20).reshape(10, 2))
    here = Caching(np.arange(5), tmp_path / "x.npy")
    assert [here.double(n) for n in (1, 1, 2)] == [2, 2, 4] and here.calls == 2
    with here.lock, here.again:
        there = send(here)
    assert there.lock.acquire(blocking=False) and there.again.acquire(blocking=False)
    assert there.double.cache_info() == (0, 0, 2, 0)
    assert [there.double(n) for n in (1, 1, 2)] == [2, 2, 4]
    assert (there.calls, here.calls) == (4, 2)  # its own
    assert there.shared is shared
    assert isinstance(there.mapped, np.memmap) and there.mapped.filename == here.mapped.filename
    np.testing.assert_array_equal(there.mapped, here.mapped)
    np.testing.assert_array_equal(there.part, here.part)


def test_what_stays_is_known_there_by_its_numbers_and_texts():
    tally = Tally()
    there = send([tally, {"again": tally}], [tally])
    assert isinstance(there[0], Remote) and there[0] is there[1]["again"]
    assert (there[0].limit, there[0].name, there[0]._number) == (3, "tally", 0)
    assert not hasattr(there[0], "_secret")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda: 0, "lambda"),
        (Holder(open(__file__)), "Holder cannot be sent to processes: .*TextIOWrapper'"),
    ],
)
def test_what_cannot_be_sent_is_named(content, message):
    with pytest.raises(UserError, match=message):
        send(content)


def test_what_the_program_defines_itself_cannot_be_sent(monkeypatch):
    """A process has another main module."""
    monkeypatch.setattr(Tally, "__module__", "__main__")
    with pytest.raises(UserError, match="Tally is defined in the program itself; move it into a"):
        send(Tally())
