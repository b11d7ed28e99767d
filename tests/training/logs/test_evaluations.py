"""Every evaluation is kept once, in the order in which it was made, whatever was killed."""

import json

from big_align.core.formats import find_version
from big_align.training.logs.evaluations import (
    EVALUATION,
    TRAINING,
    EvaluationLog,
    read_evaluations,
)


def write(workdir, *steps, mode=TRAINING):
    log = EvaluationLog(str(workdir), mode, {"evaluators": {"digits": {"name": "zero_shot"}}})
    for step in steps:
        log.write(step, {"digits/top1": step / 10}, 1.23456, workdir / "checkpoints" / str(step))
    return log


def steps(workdir):
    return [(record["mode"], record["step"]) for record in read_evaluations(workdir)]


def test_a_line_says_what_was_measured_of_what(tmp_path):
    write(tmp_path / "new", 5).write(None, {"a/b": float("nan"), "a/c": 1.0}, 0.0, None)
    first, second = map(json.loads, (tmp_path / "new" / "evaluations.jsonl").open())
    assert first.pop("time").endswith("+00:00")
    assert first == {
        "step": 5,
        "checkpoint": str(tmp_path / "new" / "checkpoints" / "5"),
        "seconds": 1.235,
        "numbers": {"digits/top1": 0.5},
        "mode": "train",
        "evaluators": {"digits": {"name": "zero_shot"}},
        "version": find_version(),
    }
    assert second["numbers"] == {"a/b": "nan", "a/c": 1.0}
    assert second["step"] is None and second["checkpoint"] is None


def test_steps_that_are_repeated_stand_there_once_and_evaluations_of_checkpoints_stay(tmp_path):
    write(tmp_path, 2, 4)
    write(tmp_path, 4, mode=EVALUATION)
    write(tmp_path, 6).drop_after(4)
    assert steps(tmp_path) == [("train", 2), ("train", 4), ("eval", 4)]
    write(tmp_path, 5).drop_after(2)
    assert steps(tmp_path) == [("train", 2), ("eval", 4)]


def test_a_line_that_a_kill_cut_short_spoils_no_other(tmp_path):
    write(tmp_path, 2, 4)
    path = tmp_path / "evaluations.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    write(tmp_path, 6, mode=EVALUATION)
    assert steps(tmp_path) == [("train", 2), ("eval", 6)]
    write(tmp_path).drop_after(9)
    assert len(path.read_text().splitlines()) == 2
    write(tmp_path / "none").drop_after(0)
    assert steps(tmp_path / "none") == []
