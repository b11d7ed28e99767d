"""A run that is killed again and again logs every step once, everywhere."""

import os
import random
import signal
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from big_align.core.whole_files import name_partial
from tests.run_main import Run, read_losses

STEPS = 60
FLAGS = (f"--config.total_steps={STEPS}", "--config.checkpoint.every=7", "--config.evaluators={}")


@pytest.mark.slow
def test_after_kills_metrics_and_tensorboard_have_every_step_once(tmp_path):
    for goal in (STEPS // 4, STEPS // 2, 3 * STEPS // 4):
        run = Run(tmp_path, *FLAGS, devices=1)
        run.wait_for_step(goal)
        time.sleep(random.random() / 5)
        run.signal(signal.SIGKILL)
        assert run.wait() in (-signal.SIGKILL, 0)
    for name in ("metrics.jsonl", "starts.jsonl"):
        with (tmp_path / name).open("ab") as file:
            file.write(b'\xff\xfe\n{"loss": 1.0}\n{"step": 3, "lo')
    left = name_partial(tmp_path / "metrics.jsonl")  # as a kill in the midst of it leaves
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    run = Run(tmp_path, *FLAGS, devices=1)
    assert run.wait() == 0, run.err
    assert not left.exists()
    for name, count in (("metrics.jsonl", 3), ("starts.jsonl", 2)):
        told = [line for line in run.err.splitlines() if str(tmp_path / name) in line]
        assert len(told) == 1 and f"{count} lines that cannot be read are dropped" in told[0]
    losses = read_losses(tmp_path)
    assert [step for step, _ in losses] == list(range(1, STEPS + 1))
    events = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    events.Reload()
    for name in events.Tags()["scalars"]:
        assert [each.step for each in events.Scalars(name)] == list(range(1, STEPS + 1)), name
    assert [each.value for each in events.Scalars("loss")] == pytest.approx(
        [loss for _, loss in losses]
    )
