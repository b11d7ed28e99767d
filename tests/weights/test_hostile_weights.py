"""Weights from strangers take no more memory and time than their files explain."""

import re
import shutil

import pytest

from tests.weights.bounded_loads import BoundedLoads
from tests.weights.hostile_configs import CONFIGS, spoil, write_intact
from tests.weights.hostile_weights import PLAIN, SIX, list_files, list_harmless
from tests.weights.torch_archives import write_archive

FILES, HARMLESS = list_files(), list_harmless()
LONG = "million|sets|copies|arguments|overlap|great numbers|long numbers"
"""What takes seconds, to write or to refuse."""


def params(table):
    for what in table:
        slow = [pytest.mark.slow] if re.search(LONG, what) else []
        yield pytest.param(what, marks=slow)


@pytest.fixture(scope="module")
def load():
    with BoundedLoads() as loads:
        yield loads


@pytest.fixture(scope="module")
def intact(load, tmp_path_factory):
    """Makes a copy of a legal folder of a format, which is written and read once."""
    made = {}

    def copy(hostile, folder):
        key = hostile.tower, hostile.format
        if key not in made:
            made[key] = tmp_path_factory.mktemp("intact") / "model"
            write_intact(hostile, made[key])
            assert load(made[key]).what == "read"
        shutil.copytree(made[key], folder)

    return copy


def check(outcome, path, message, megabytes):
    """A file of some megabytes must be refused within bounds, in a line that names it."""
    assert outcome.what == "refused", outcome
    assert outcome.megabytes < 256 + 4 * megabytes, outcome
    assert outcome.seconds < 15 + 2 * megabytes, outcome
    assert str(path) in outcome.message and len(outcome.message.splitlines()) == 1
    assert re.search(message, outcome.message), outcome.message


@pytest.mark.parametrize("what", params(FILES))
def test_a_hostile_file_is_refused_within_bounds(load, tmp_path, what):
    hostile = FILES[what]
    path = tmp_path / hostile.name
    hostile.write(path)
    check(load(path), path, hostile.message, path.stat().st_size / 1e6)


@pytest.mark.parametrize("what", params(HARMLESS))
def test_what_a_state_dict_does_not_need_costs_nothing(load, tmp_path, what):
    intact, path = tmp_path / "intact.pt", tmp_path / "weights.pt"
    write_archive(intact, PLAIN, {"0": SIX})
    HARMLESS[what](path)
    outcome = load(path)
    assert outcome.what == "read" and outcome.digests == load(intact).digests
    assert outcome.megabytes < 64 and outcome.seconds < 15, outcome


@pytest.mark.slow
@pytest.mark.parametrize("what", CONFIGS)
def test_a_config_of_another_model_is_refused_before_it_is_built(load, intact, tmp_path, what):
    hostile, path = CONFIGS[what], tmp_path / "model"
    intact(hostile, path)
    spoil(hostile, path)
    check(load(path), path, hostile.message, 1)
