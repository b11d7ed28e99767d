"""A run may have a run before it: two plain runs, and one command for both."""

import json

import numpy as np
import pytest

from big_align.config.overrides import load_config
from big_align.core.errors import ConfigError, Stopped
from big_align.runs import check, program, train
from big_align.runs.workdir import read_pretrained
from big_align.training.logs.evaluations import read_evaluations
from big_align.training.loop import Progress
from tests.run_main import TINY, read_losses


def make_config(**fields):
    """Two tiny runs, the second half as long and with another rate."""
    first = load_config(TINY, "--config.evaluators={}")
    config = load_config(
        TINY, "--config.evaluators={}", "--config.total_steps=4", "--config.data.window=64"
    )
    with config.unlocked():
        config.first = first
        config.update_from_flattened_dict(fields)
    return config


@pytest.mark.slow
def test_two_runs_in_one_command_are_two_runs(tmp_path, monkeypatch):
    """But for the examples and the random draws, with which the second goes on."""
    monkeypatch.setattr(train, "count_batches_before", lambda _: 0)
    monkeypatch.setattr(program, "count_steps_before", lambda _: 0)
    config = make_config()
    train.run(config, str(tmp_path / "one"))

    train.run(make_config().first, str(tmp_path / "first"))
    second = make_config(**{"init.all": str(tmp_path / "first")})
    with second.unlocked():
        second.first = {}
    train.run(second, str(tmp_path / "second"))

    assert read_losses(tmp_path / "one" / "first") == read_losses(tmp_path / "first")
    assert read_losses(tmp_path / "one") == read_losses(tmp_path / "second")
    left, right = read_pretrained(tmp_path / "one").flat, read_pretrained(tmp_path / "second").flat
    for name, array in left.items():
        np.testing.assert_array_equal(array, right[name])
    assert config.init.all is None  # of the caller


@pytest.mark.slow
def test_the_same_command_continues_whichever_is_unfinished(tmp_path, monkeypatch):
    train.run(make_config(), str(tmp_path / "whole"))

    advance = Progress.advance

    def stop_at(step):
        """Has the run stop on request after so many steps, whichever run's they are."""
        done = []
        monkeypatch.setattr(Progress, "advance", lambda self: done.append(advance(self)))
        received = property(lambda _: len(done) == step, lambda *_: None)
        monkeypatch.setattr(train.StopSignals, "received", received, raising=False)

    workdir = tmp_path / "stopped"
    stop_at(4)
    with pytest.raises(Stopped):
        train.run(make_config(), str(workdir))
    assert not (workdir / "checkpoints").exists()
    stop_at(4 + 2)  # four more of the first run, two of the second
    with pytest.raises(Stopped):
        train.run(make_config(), str(workdir))
    assert [step for step, _ in read_losses(workdir)] == [1, 2]
    monkeypatch.undo()
    before = (workdir / "first" / "metrics.jsonl").read_bytes()
    train.run(make_config(), str(workdir))
    assert (workdir / "first" / "metrics.jsonl").read_bytes() == before
    for name in ("", "first"):
        assert read_losses(workdir / name) == read_losses(tmp_path / "whole" / name)
    left = json.loads((workdir / "config.json").read_text())
    assert left["first"]["total_steps"] == 8 and left["init"]["all"] is None


@pytest.mark.slow
def test_a_first_run_stopped_in_its_last_evaluation_is_evaluated(tmp_path, monkeypatch):
    build, config = train._build_evaluation, make_config()
    config.first = load_config(TINY)

    def stop(state):
        raise Stopped("in the last evaluation")

    monkeypatch.setattr(train, "_build_evaluation", lambda *given: stop)
    with pytest.raises(Stopped):
        train.run(config, str(tmp_path))
    assert not (tmp_path / "checkpoints").exists()
    monkeypatch.setattr(train, "_build_evaluation", build)
    train.run(config, str(tmp_path))
    measured = [each["step"] for each in read_evaluations(tmp_path / "first")]
    assert measured == [8]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"first.total_steps": 0}, "config.first.total_steps = 0 must be at least 1"),
        ({"first.objective.temperature": -1.0}, "config.first.objective: "),
        ({"init.all": "somewhere"}, "config.init.all = 'somewhere' is not used beside config.fir"),
    ],
)
def test_a_mistake_in_the_first_run_is_told_before_anything_starts(monkeypatch, fields, message):
    monkeypatch.setattr(check, "check_init", lambda *_: None)
    with pytest.raises(ConfigError, match=message):
        check.check_config(make_config(**fields))


@pytest.mark.slow
def test_the_checkpoints_of_a_first_run_may_be_elsewhere(tmp_path):
    config = make_config(**{"first.checkpoint.folder": str(tmp_path / "bucket")})
    train.run(config, str(tmp_path / "run"))
    assert (tmp_path / "bucket").is_dir() and not (tmp_path / "run/first/checkpoints").exists()
    train.run(make_config(), str(tmp_path / "plain"))
    assert read_losses(tmp_path / "run") == read_losses(tmp_path / "plain")
