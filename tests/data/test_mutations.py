"""Whatever stands in a file: it is read, or skipped and counted, or a line says what is wrong."""

import collections
import functools
import random
import shutil

import pytest
from bounded import BoundedCalls, Outcome
from mutations import KINDS, mutate

TRIALS = 224

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def call():
    calls = BoundedCalls()
    yield calls
    calls.close()


@pytest.fixture(scope="module")
def intact(call, tmp_path_factory):
    """Tells of a kind what is read of an intact input."""

    @functools.cache
    def read(name: str) -> Outcome:
        folder = tmp_path_factory.mktemp(name)
        KINDS[name].write(folder)
        return call(name, folder)

    return read


def judge(name: str, folder, outcome: Outcome, whole: Outcome, must_notice: bool) -> str:
    """Returns what is wrong with how a fault was met, or nothing."""
    if outcome.what == "error":
        if "\n" in outcome.message or not outcome.message:
            return "lines"
        named = [path.name for path in folder.rglob("*")] + [str(folder)]
        return "" if any(each in outcome.message for each in named) else "nameless"
    if outcome.what != "read":
        return outcome.what
    if outcome.broken:
        lines = [line for line in outcome.logged if "skipped" in line or "lost" in line]
        return "" if lines or outcome.logged else "unlogged"
    if must_notice:
        return "silent"
    if KINDS[name].sealed and not contents(outcome) <= contents(whole):
        return "silent"
    return ""


def contents(outcome: Outcome) -> set[str]:
    """What was read, without the names: bytes may be repeated whole, or end early."""
    return {str(row[1:] if isinstance(row, list) else row) for row in outcome.rows}


def try_mutations(call, intact, folder, seeds, kinds) -> dict[str, list]:
    """Returns the seeds of the mutations that were met wrongly, by what is wrong."""
    found = collections.defaultdict(list)
    for seed in seeds:
        name = kinds[seed % len(kinds)]
        rng = random.Random(seed)
        here = folder / str(seed)
        here.mkdir()
        KINDS[name].write(here)
        must_notice = mutate(name, here, rng)
        outcome = call(name, here)
        fault = judge(name, here, outcome, intact(name), must_notice)
        if fault:
            found[fault].append((name, seed, outcome.message.strip().split("\n")[-1][:200]))
        shutil.rmtree(here)
    return dict(found)


def check_intact(intact) -> None:
    for name in KINDS:
        outcome = intact(name)
        assert outcome.what == "read" and not outcome.broken, (name, outcome)


def test_mutations_are_met(call, intact, tmp_path):
    check_intact(intact)
    assert try_mutations(call, intact, tmp_path, range(TRIALS), list(KINDS)) == {}
