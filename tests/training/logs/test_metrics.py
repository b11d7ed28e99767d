"""Metrics on disk survive kills and never repeat a step."""

import json
import re
import types

import pytest

from big_align.parallel.devices.chips import CHIPS
from big_align.training.logs import metrics
from tests.fake_clock import FakeClock


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_resumed_run_drops_what_it_will_repeat(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"step": s, "loss": float(s)}) for s in range(1, 6)]
    path.write_text("\n".join(lines) + '\n{"step": 6, "lo')  # killed while writing
    writer = metrics.MetricWriter(str(tmp_path), step=3)
    writer.write(4, {"loss": 40.0})
    writer.close()
    assert [r["step"] for r in read(path)] == [1, 2, 3, 4]
    assert read(path)[-1] == {"step": 4, "loss": 40.0}


def test_every_line_is_valid_json_even_when_a_number_is_not(tmp_path):
    writer = metrics.MetricWriter(str(tmp_path), step=0)
    writer.write(1, {"loss": float("nan"), "norm": 2.0})
    writer.close()
    assert read(tmp_path / "metrics.jsonl") == [{"step": 1, "loss": "nan", "norm": 2.0}]


def test_events_hold_the_same_numbers(tmp_path):
    writer = metrics.MetricWriter(str(tmp_path), step=0)
    writer.write(3, {"loss": 1.5})
    writer.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(3, 1.5)]


def test_rates_split_a_step_into_waiting_and_computing():
    clock = FakeClock()

    def batches():
        while True:
            clock.pass_time(0.25)
            yield "batch"

    clock.begin("steps")
    progress = metrics.Progress(0, 10, batch_size=8, step_flops=100.0, clock=clock)
    stream = batches()
    for _ in range(2):
        assert progress.wait_for(stream) == "batch"
        clock.pass_time(0.5)
        progress.advance()
    for _ in range(2):
        clock.pass_time(0.25)
        progress.finish()
    with clock.phase("evaluating"):
        clock.pass_time(100)  # is no part of the time of a step
    rates = progress.rates()
    assert progress.rates() == rates  # no step since
    progress.close()
    assert rates["images_per_second"] == pytest.approx(8)
    assert rates["step_seconds"] == pytest.approx(1)
    assert rates["data_wait_seconds"] == pytest.approx(0.25)
    assert rates["device_flops_per_second"] == pytest.approx(100)
    assert "model_flop_utilization" not in rates  # nobody publishes the peak of a CPU


def test_the_time_left_includes_evaluations(capsys, monkeypatch):
    """A run continues from step 100: steps take a second, and each hundredth 100 more."""
    clock = FakeClock()
    monkeypatch.setattr("tqdm.std.time", lambda: clock.now)
    now = types.SimpleNamespace(monotonic=lambda: clock.now)
    monkeypatch.setattr("big_align.core.progress.time", now)
    progress = metrics.Progress(100, 1000, batch_size=8, step_flops=1.0, clock=clock)
    for step in range(101, 701):
        clock.pass_time(1)
        progress.advance()
        clock.pass_time(0 if step % 100 else 100)
    progress.close()
    told = re.findall(r"(\d+)/1000 \[[\d:]+<(\d+):(\d+),", capsys.readouterr().err)
    left = {int(step): 60 * int(minutes) + int(seconds) for step, minutes, seconds in told}
    late = [step for step in left if step > 400]
    assert len(late) > 5
    for step in late:
        evaluations = 9 - step // 100  # before the last step
        assert left[step] == pytest.approx(1000 - step + 100 * evaluations, rel=0.25)


def test_utilization_is_a_fraction_of_the_published_peak(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(metrics, "find_chip", lambda kind: CHIPS["v3"])
    clock.begin("steps")
    progress = metrics.Progress(0, 10, batch_size=8, step_flops=12.3e12, clock=clock)
    progress.advance()
    clock.pass_time(0.5)
    progress.finish()
    rates = progress.rates()
    progress.close()
    assert rates["device_flops_per_second"] == pytest.approx(24.6e12)
    assert rates["model_flop_utilization"] == pytest.approx(0.4)  # a core of two


def test_a_table_has_what_is_known_of_chance_beside_each_number():
    rows = {"a/r1": 0.5, "a/r1_chance": 0.01, "a/r5": 0.75, "a/x_candidates": 100.0}
    assert metrics.format_table(rows).splitlines() == [
        "  a/r1              0.5000  (chance 0.0100)",
        "  a/r5              0.7500",
        "  a/x_candidates       100",
    ]
