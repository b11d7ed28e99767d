"""Which checkpoints stay: the last, every nth and the best, whatever has been interrupted."""

import math
import random
import shutil

import numpy as np
import pytest

from big_align.core.errors import MissingCheckpoint, UserError
from big_align.training.logs.evaluations import EVALUATION, TRAINING, EvaluationLog
from big_align.training.saving.checkpoint import Checkpointer
from big_align.training.saving.retention import Evaluated, Retention
from big_align.training.state import TrainState

NUMBER = "photos/r1"


def evaluated(*numbers):
    """Checkpoints of steps 1, 2, ..., with a number or, for None, without an evaluation."""
    return [
        Evaluated(step, None if number is None else {NUMBER: number, "photos/loss": number})
        for step, number in enumerate(numbers, start=1)
    ]


def kept(retention, checkpoints):
    retention.numbers.update(checkpoints)
    stay = retention.should_preserve(checkpoints, context=None)
    return [info.step for info, stays in zip(checkpoints, stay, strict=True) if stays]


@pytest.mark.parametrize(
    ("keep_best", "numbers", "best", "steps"),
    [
        (NUMBER, (0.1, 0.3, 0.2, 0.1), 2, [2, 3, 4]),
        (NUMBER, (0.3, 0.1, 0.3, 0.3), 1, [1, 3, 4]),  # the first of equals
        (NUMBER, (None, 0.1, math.nan, None), 2, [2, 3, 4]),
        (NUMBER, (None, None, None, None), None, [3, 4]),
        ("photos/loss", (0.3, 0.1, 0.2, 0.4), 2, [2, 3, 4]),
        ("photos/top5", (0.3, 0.1, 0.2, 0.4), None, [3, 4]),
        (None, (0.3, 0.1, 0.2, 0.4), None, [3, 4]),
    ],
)
def test_the_best_stays_beside_the_last(keep_best, numbers, best, steps):
    retention = Retention(2, None, keep_best)
    checkpoints = evaluated(*numbers)
    found = retention.find_best(checkpoints)
    assert (found and found.step) == best
    assert kept(retention, checkpoints) == steps


def test_checkpoints_at_multiples_stay_too():
    checkpoints = evaluated(0.5, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1)
    assert kept(Retention(1, 3, NUMBER), checkpoints) == [1, 3, 6, 7]


@pytest.mark.parametrize("keep_best", ["r1", "photos/", "/r1"])
def test_what_is_no_number_is_named(keep_best):
    with pytest.raises(ValueError, match=f"keep_best = '{keep_best}' is no number"):
        Retention(1, None, keep_best)


def state(step):
    params, rng = {"w": np.full(1, step, np.float32)}, np.zeros(2, np.uint32)
    return TrainState(np.int32(step), params, {}, {}, rng)


def go_on(workdir, numbers, stop_after=None, keep_best=NUMBER, folder=None):
    """Trains as the loop does: an evaluation in every step, a checkpoint in every fifth."""
    saved = Checkpointer(str(workdir), keep_last=1, keep_best=keep_best, folder=folder)
    for step in range((saved.latest_step or 0) + 1, len(numbers) + 1):
        measured = {NUMBER: numbers[step - 1]}
        if saved.improves(measured) or step % 5 == 0:
            saved.save(state(step), {}, measured)
        if step == stop_after:
            break
    saved.close()


def list_steps(folder):
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


@pytest.mark.slow
def test_the_best_of_an_interrupted_run_is_that_of_one_that_never_stopped(tmp_path):
    rng = random.Random(0)
    for case in range(3):
        numbers = [rng.choice((0.1, 0.2, 0.3, 0.4, math.nan)) for _ in range(12)]
        whole, parts = tmp_path / f"whole{case}", tmp_path / f"parts{case}"
        go_on(whole, numbers)
        for stop_after in (*sorted(rng.sample(range(1, 12), 3)), None):
            go_on(parts, numbers, stop_after)
            newest = list_steps(parts / "checkpoints")[-1]
            if stop_after and newest > 5:  # a kill before the newest was whole
                shutil.rmtree(parts / "checkpoints" / str(newest))
                if not list_steps(parts / "checkpoints"):
                    continue
        steps = list_steps(whole / "checkpoints")
        assert list_steps(parts / "checkpoints") == steps
        best = Checkpointer(str(parts), keep_best=NUMBER, read_only=True).find("best")
        known = [x if x == x else -1 for x in numbers]
        assert best == known.index(max(known)) + 1


def test_the_best_is_found_wherever_checkpoints_lie_and_by_another_number_too(tmp_path):
    folder = tmp_path / "elsewhere"
    go_on(tmp_path / "run", [0.1, 0.4, 0.2, 0.1, 0.1, 0.1], folder=str(folder))
    assert list_steps(folder) == [2, 5]
    given = {"folder": str(folder), "read_only": True}
    saved = Checkpointer(str(tmp_path / "run"), keep_best=NUMBER, **given)
    assert saved.find("best") == 2 and saved.find(None) == saved.find(5) == 5
    assert saved.restore({"params": {"w": np.zeros(1, np.float32)}}, {}, "best")["params"]["w"] == 2
    with pytest.raises(MissingCheckpoint, match="no checkpoint of step 3; .* steps 2, 5"):
        saved.find(3)
    with pytest.raises(MissingCheckpoint, match="no checkpoint with the number photos/top1 of"):
        Checkpointer(str(tmp_path / "run"), keep_best="photos/top1", **given).find("best")
    with pytest.raises(MissingCheckpoint, match="keep_best was not set"):
        Checkpointer(str(tmp_path / "run"), **given).find("best")


def test_a_checkpoint_that_was_measured_after_it_was_saved_can_be_the_best(tmp_path):
    saved = Checkpointer(str(tmp_path), keep_last=1, keep_best=NUMBER)
    saved.save(state(2), {}, None)  # its evaluation was interrupted
    saved.close()

    saved = Checkpointer(str(tmp_path), keep_last=1, keep_best=NUMBER)
    log = EvaluationLog(str(tmp_path), TRAINING, {})
    log.write(2, {NUMBER: 0.9}, 1.0, None)
    saved.note(2, {NUMBER: 0.9})
    assert not saved.improves({NUMBER: 0.5})
    saved.save(state(4), {}, {NUMBER: 0.5})
    saved.close()

    EvaluationLog(str(tmp_path), EVALUATION, {}).write(4, {NUMBER: 1.0}, 1.0, None)  # of others
    saved = Checkpointer(str(tmp_path), keep_last=1, keep_best=NUMBER)  # another process
    saved.save(state(6), {}, {NUMBER: 0.4})
    saved.close()
    assert list_steps(tmp_path / "checkpoints") == [2, 6]
    assert Checkpointer(str(tmp_path), keep_best=NUMBER, read_only=True).find("best") == 2


def test_a_number_that_was_not_measured_is_named_with_those_that_were(tmp_path):
    saved = Checkpointer(str(tmp_path), keep_best="photos/r11")
    with pytest.raises(UserError, match=r"'photos/r11' is no .*mean 'photos/r1'.*: photos/r1, b/x"):
        saved.improves({"photos/r1": 0.1, "b/x": 0.2})
    saved.close()
