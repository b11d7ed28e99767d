"""Leases, on a disk and in a bucket: one of many gets each, and only a lost owner loses it."""

import collections
import subprocess

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from big_align.core.errors import UserError
from big_align.data.shared import leases, storage
from big_align.data.shared.leases import LeaseName, Leases
from tests.two_processes import run_together

UNIT = "000000-a.tar"
FIRST = LeaseName(UNIT, 0)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def owner(folder, monkeypatch):
    """Leases that are renewed only when a test says so."""
    monkeypatch.setattr(Leases, "_renew_all", lambda _: None)
    return Leases(folder)


def test_of_many_that_take_a_lease_one_gets_it(folder):
    made = [Leases(folder) for _ in range(8)]
    for unit in ("a", "b", "c"):
        got = run_together(lambda n, unit=unit: made[n].take(unit), 8)
        assert sum(got) == 1
        assert not made[0].take(unit)
    for each in made:
        each.close()
    assert storage.list_names(folder) == []


def test_an_owner_that_gives_no_sign_for_its_term_is_lost(folder, owner, clock):
    assert owner.take(UNIT)
    other = Leases(folder, clock)
    assert other.watch(FIRST)[1:] == (False, False)
    clock.now = leases.SECONDS - 0.1
    assert other.watch(FIRST)[1:] == (False, False)
    owner._renew(FIRST)
    clock.now = leases.SECONDS + 0.1  # after the renewal a term begins when it is seen
    assert other.watch(FIRST)[1:] == (True, False)
    clock.now = 2 * leases.SECONDS
    assert other.watch(FIRST)[1:] == (True, False)
    clock.now += 0.2
    assert other.watch(FIRST)[1:] == (True, True)
    assert other.take(UNIT, 1) and not Leases(folder).take(UNIT, 1)
    other.release(UNIT)
    assert storage.list_names(folder) == []
    assert other.watch(FIRST) is None


def test_a_process_that_was_stopped_itself_takes_no_lease_of_another(owner, clock, monkeypatch):
    """Between its clock and what it reads any time may pass."""
    assert owner.take(UNIT)
    other, read = Leases(owner._folder, clock), storage.read_bytes

    def read_slowly(path):
        content = read(path)
        clock.now += 10 * leases.SECONDS
        return content

    monkeypatch.setattr(storage, "read_bytes", read_slowly)
    other.watch(FIRST)
    assert not other.watch(FIRST).dead


def test_the_owner_says_how_long_its_term_is(folder, owner, clock, monkeypatch):
    owner._seconds = 7.0
    owner.take(UNIT)
    other = Leases(folder, clock)
    assert other.watch(FIRST).owner.seconds == 7
    clock.now = 7.1
    assert other.watch(FIRST).dead


def test_a_lease_is_renewed_until_it_is_given_back(folder, monkeypatch):
    monkeypatch.setattr(leases, "SECONDS", 0.2)
    owner, other = Leases(folder), Leases(folder)
    owner.take(UNIT)
    seen = collections.Counter()
    while len(seen) < 3:
        seen[storage.read_bytes(storage.join(folder, str(FIRST)))] += 1
        assert not other.watch(FIRST).dead
    owner.close()
    assert storage.list_names(folder) == []


def test_an_owner_that_was_stopped_renews_nothing_that_is_gone(folder, owner):
    owner.take(UNIT)
    storage.remove(storage.join(folder, str(FIRST)))
    owner._renew(FIRST)
    assert storage.list_names(folder) == []
    Leases(folder).take(UNIT)
    content = storage.read_bytes(storage.join(folder, str(FIRST)))
    owner._renew(FIRST)
    assert storage.read_bytes(storage.join(folder, str(FIRST))) == content


@pytest.mark.slow
def test_an_answer_that_is_lost_does_not_lose_the_lease(bucket):
    bucket.fail("PUT /pairs/work/a", "lose")
    made = Leases("s3://pairs/work")
    assert made.take("a") and not Leases("s3://pairs/work").take("a")
    made.close()


def test_a_process_of_this_host_that_has_ended_is_not_waited_for(folder, owner, monkeypatch):
    ended = subprocess.Popen(["true"])
    ended.wait()
    monkeypatch.setattr(leases.os, "getpid", lambda: ended.pid)
    owner.take(UNIT)
    other = Leases(folder)
    other.watch(FIRST)
    assert other.watch(FIRST)[1:] == (False, True)
    monkeypatch.setattr(leases.socket, "gethostname", lambda: "another")
    assert other.watch(FIRST)[1:] == (False, False)


def test_a_disk_without_second_names_has_leases(tmp_path, monkeypatch):
    def link(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", link)
    test_of_many_that_take_a_lease_one_gets_it(str(tmp_path))


class Careless(MemoryFileSystem):
    """Writes over what is there, whatever the mode."""

    protocol = "careless"

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        return super().pipe_file(path, value, mode="overwrite")


class Old(MemoryFileSystem):
    """Knows no modes."""

    protocol = "old"

    def pipe_file(self, path, value):
        return super().pipe_file(path, value)


@pytest.mark.parametrize("kind", [Careless, Old])
def test_a_file_system_without_exclusive_creation_is_refused_in_a_line(kind):
    fsspec.register_implementation(kind.protocol, kind, clobber=True)
    with pytest.raises(UserError, match="does not say which of several processes") as raised:
        Leases(f"{kind.protocol}://work").take("a")
    assert "\n" not in str(raised.value)
