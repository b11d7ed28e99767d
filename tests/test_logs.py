"""Metrics on disk survive kills and never repeat a step."""

import json

import pytest

from big_align import logs


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_resumed_run_drops_what_it_will_repeat(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"step": s, "loss": float(s)}) for s in range(1, 6)]
    path.write_text("\n".join(lines) + '\n{"step": 6, "lo')  # killed while writing
    writer = logs.MetricWriter(str(tmp_path), step=3)
    writer.write(4, {"loss": 40.0})
    writer.close()
    assert [r["step"] for r in read(path)] == [1, 2, 3, 4]
    assert read(path)[-1] == {"step": 4, "loss": 40.0}


def test_every_line_is_valid_json_even_when_a_number_is_not(tmp_path):
    writer = logs.MetricWriter(str(tmp_path), step=0)
    writer.write(1, {"loss": float("nan"), "norm": 2.0})
    writer.close()
    assert read(tmp_path / "metrics.jsonl") == [{"step": 1, "loss": "nan", "norm": 2.0}]


def test_events_hold_the_same_numbers(tmp_path):
    writer = logs.MetricWriter(str(tmp_path), step=0)
    writer.write(3, {"loss": 1.5})
    writer.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(3, 1.5)]


def test_rates_split_a_step_into_waiting_and_computing(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])

    def batches():
        while True:
            now[0] += 0.25
            yield "batch"

    progress = logs.Progress(0, 10, batch_size=8, step_flops=100.0)
    stream = batches()
    for _ in range(2):
        assert progress.wait_for(stream) == "batch"
        now[0] += 0.75
        progress.advance()
    rates = progress.rates()
    assert progress.rates() == rates  # no step since
    progress.close()
    assert rates["images_per_second"] == pytest.approx(8)
    assert rates["step_seconds"] == pytest.approx(1)
    assert rates["data_wait_seconds"] == pytest.approx(0.25)
    assert rates["device_flops_per_second"] == pytest.approx(100)


def test_peak_flops_prefers_the_longest_match():
    assert logs.peak_flops("TPU v5 lite") == logs.PEAK_FLOPS["TPU v5 lite"]
    assert logs.peak_flops("TPU v5p") == logs.PEAK_FLOPS["TPU v5"]
    assert logs.peak_flops("cpu") is None
