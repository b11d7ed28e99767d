"""What an alarm leaves in the workdir, and which data a run takes after it has gone back."""

import itertools
import json
import math

import pytest

from big_align.core.errors import DivergedError, NotFiniteError, Rewound
from big_align.training.health import rewinds
from big_align.training.health.guard import Alarm, Guard
from big_align.training.health.rewinds import Health, Rewind, find_data_step
from big_align.training.health.spread import LEAST, Range

USUAL = {"loss": 1.0, "gradient_norm": 2.0, "parameter_norm": 3.0}


def make(workdir, step=0, goes_back=False, saved=None, watched=None, made=None):
    return Health(
        str(workdir),
        step,
        rewinds=goes_back,
        list_examples=lambda data_step: [f"example {data_step}"],
        last_good=lambda: saved,
        saved=made,
        watched=watched,
    )


def read(workdir, name):
    return [json.loads(line) for line in (workdir / name).read_text().splitlines()]


def train_until(health, step, start=0):
    for number in range(start + 1, step + 1):
        health.check(number, USUAL)


def test_data_that_were_left_out_are_those_from_the_checkpoint_to_the_alarm():
    assert [find_data_step([], step) for step in (0, 7)] == [0, 7]
    # Steps 5, 6, 7 took the batches 4, 5, 6; the last of them raised the alarm.
    once = [Rewind(checkpoint=4, step=7)]
    assert [find_data_step(once, step) for step in range(3, 7)] == [3, 7, 8, 9]
    # Gone back to 4 again in step 6, which took batch 8; and later to 10 in step 11.
    more = [*once, Rewind(4, 6), Rewind(10, 11)]
    assert [find_data_step(more, step) for step in (3, 4, 5, 9, 10)] == [3, 9, 10, 14, 16]


def test_a_jump_is_told_with_its_examples_and_the_run_goes_on(tmp_path):
    health = make(tmp_path)
    train_until(health, LEAST)
    health.check(LEAST + 1, USUAL | {"loss": 5.0})
    health.check(LEAST + 2, USUAL | {"loss": 5.0})  # the same departure
    health.check(LEAST + 3, USUAL)
    health.check(LEAST + 4, USUAL | {"gradient_norm": math.inf})
    first, second = read(tmp_path, "suspects.jsonl")
    assert first == {
        "step": LEAST + 1,
        "what": "loss",
        "value": 5.0,
        "expected": pytest.approx([0.0, 2.0]),
        "keys": [f"example {LEAST}"],
    }
    assert (second["what"], second["value"]) == ("gradient_norm", "inf")
    assert not (tmp_path / "rewinds.jsonl").exists()


@pytest.mark.parametrize("name", ["loss", "parameter_norm"])
def test_what_is_not_finite_ends_a_run_that_reports(tmp_path, name):
    with pytest.raises(NotFiniteError, match="is nan at step 42; the last good .* that of step 40"):
        make(tmp_path, saved=40).check(42, USUAL | {name: math.nan})
    (line,) = read(tmp_path, "suspects.jsonl")
    assert (line["value"], line["expected"], line["keys"]) == ("nan", None, ["example 41"])
    with pytest.raises(NotFiniteError, match="the last good checkpoint is none yet. Lower config"):
        make(tmp_path).check(1, USUAL | {name: math.inf})


@pytest.mark.parametrize("wrong", [{"loss": 9.0}, {"loss": math.nan}, {"gradient_norm": 1e9}])
def test_a_run_that_goes_back_leaves_its_decision_to_whoever_continues(tmp_path, wrong):
    health = make(tmp_path, goes_back=True, saved=LEAST)
    train_until(health, LEAST)
    health.save(LEAST)
    train_until(health, LEAST + 4, LEAST)
    with pytest.raises(Rewound, match=f"going back to step {LEAST}, and leaving .* of 5 steps"):
        health.check(LEAST + 5, USUAL | wrong)
    for answer in (True, False):  # what was decided holds, whatever the config says by now
        again = make(tmp_path, LEAST, goes_back=answer, saved=LEAST)
        assert [again.data_step(step) for step in (LEAST - 1, LEAST)] == [LEAST - 1, LEAST + 5]
    with pytest.raises(Rewound, match="of 1 steps"):
        again = make(tmp_path, LEAST, goes_back=True, saved=LEAST)
        again.check(LEAST + 1, USUAL | wrong)
    assert read(tmp_path, "suspects.jsonl")[-1]["keys"] == [f"example {LEAST + 5}"]
    assert make(tmp_path, LEAST).data_step(LEAST) == LEAST + 6


def test_a_run_that_continues_from_before_its_rewinds_leaves_the_same_data_out(tmp_path):
    for checkpoint, step in ((4, 7), (4, 6), (10, 11)):
        with pytest.raises(Rewound):
            make(tmp_path, goes_back=True, saved=checkpoint).check(step, USUAL | {"loss": math.nan})
    for start in (0, 3, 4, 10, 12):
        health = make(tmp_path, start)
        batches = health.leave_out(lambda n: ({"number": n} for n in itertools.count(n)), start)
        used = [batch["number"] for batch in itertools.islice(batches, 9)]
        assert used == [health.data_step(step) for step in range(start, start + 9)]
    assert [health.data_step(step) for step in (3, 4, 9, 10)] == [3, 9, 14, 16]


def test_without_a_checkpoint_a_run_goes_back_to_its_start(tmp_path):
    with pytest.raises(Rewound, match="going back to step 0, and leaving out the data of 3 steps"):
        make(tmp_path, goes_back=True).check(3, USUAL | {"loss": math.nan})
    assert make(tmp_path).data_step(0) == 3


def test_rewinds_have_an_end_that_says_what_to_do(tmp_path):
    for _ in range(rewinds.MOST):
        with pytest.raises(Rewound):
            make(tmp_path, goes_back=True).check(1, USUAL | {"loss": math.nan})
    with pytest.raises(DivergedError, match="after 10 rewinds.*lower config.schedule.learn.*names"):
        make(tmp_path, goes_back=True).check(1, USUAL | {"loss": math.nan})


def test_spreads_of_a_save_that_failed_are_dropped(tmp_path):
    for step, good, kept in (
        (10, None, [10]),
        (20, None, [20]),
        (30, 20, [20, 30]),
        (40, 20, [20, 40]),
    ):
        make(tmp_path, step, saved=good).save(step)
        assert [each["step"] for each in read(tmp_path, "spreads.jsonl")] == kept


def test_spreads_are_those_of_the_step_that_the_run_goes_on_from(tmp_path):
    health = make(tmp_path, saved=100)
    for step in range(1, 101):
        health.check(step, {name: value * (1 + step % 7 / 10) for name, value in USUAL.items()})
        if step % 10 == 0:
            health.save(step)
        if step == 90:
            known = health._guard.state()
    assert make(tmp_path, 90)._guard.state() == known
    kept = [each["step"] for each in read(tmp_path, "spreads.jsonl")]
    assert kept == [30, 40, 50, 60, 70, 80, 90, 100]
    empty = Guard(print).state()
    assert make(tmp_path, 85)._guard.state() == make(tmp_path, 0)._guard.state() == empty
    (tmp_path / "spreads.jsonl").write_text('{"step": 90, "spr')
    assert make(tmp_path, 90)._guard.state() == empty


def test_what_an_objective_has_watched_raises_the_alarm_on_its_side():
    heard = []
    guard = Guard(heard.append, {"gap": "below"})
    for step in range(1, LEAST + 1):
        guard.check(step, USUAL | {"gap": 0.5})
    guard.check(LEAST + 1, USUAL | {"gap": 5.0})
    guard.check(LEAST + 2, USUAL | {"gap": -0.01})
    assert heard == [Alarm(LEAST + 2, "gap", -0.01, Range(pytest.approx(0.25), math.inf))]
    assert heard[0].describe() == f"gap is -0.01 at step {LEAST + 2}, expected was at least 0.25"


def test_a_checkpoint_brings_what_a_workdir_has_lost(tmp_path):
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    for folder in (first, second, third):
        folder.mkdir()
    with pytest.raises(Rewound):
        make(first, goes_back=True, saved=4).check(7, USUAL | {"loss": math.nan})
    health = make(first, 4)
    train_until(health, LEAST + 4, 4)
    kept = json.loads(json.dumps(health.save(LEAST + 4)))
    assert kept["rewinds"] == [[4, 7]]
    for _ in range(2):  # the second time it is in the workdir again
        found = make(second, LEAST + 4, made=kept)
        assert [found.data_step(step) for step in (3, 4)] == [3, 7]
    with pytest.raises(Rewound):  # it knows what is usual
        make(second, LEAST + 4, goes_back=True, saved=LEAST + 4, made=kept).check(
            LEAST + 5, USUAL | {"loss": 9.0}
        )
    make(third, LEAST + 4, goes_back=True, saved=LEAST + 4).check(LEAST + 5, USUAL | {"loss": 9.0})
    # A workdir knows more than a checkpoint from before, unless it has lost a line.
    assert make(second, 4, made=kept).save(5)["rewinds"] == [[4, 7], [LEAST + 4, LEAST + 5]]
    lines = (second / "rewinds.jsonl").read_text().splitlines(keepends=True)
    (second / "rewinds.jsonl").write_text("".join(["{", "\n", *lines[1:]]))
    assert make(second, 4, made=kept).save(5)["rewinds"] == [[4, 7]]
