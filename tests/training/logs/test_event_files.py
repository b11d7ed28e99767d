"""What TensorBoard reads is every logged number once, whatever was killed."""

import json

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from big_align.core.tf_records import encode_record
from big_align.training.logs.event_files import EventFile, split_records
from big_align.training.logs.metrics import MetricWriter

NAMES = ("loss", "time/steps", "a b")


def write(workdir, start, steps, closed=True):
    writer = MetricWriter(str(workdir), start)
    for step in steps:
        writer.write(step, {name: step + n / 8 for n, name in enumerate(NAMES)})
    if closed:
        writer.close()
    return writer


def read(workdir):
    """The steps and values that TensorBoard shows, by name."""
    events = EventAccumulator(str(workdir), size_guidance={"scalars": 0})
    events.Reload()
    names = events.Tags()["scalars"]
    return {name: [(each.step, each.value) for each in events.Scalars(name)] for name in names}


def expect(*steps):
    tags = ("loss", "time/steps", "a_b")
    return {tag: [(step, step + n / 8) for step in steps] for n, tag in enumerate(tags)}


def newest(workdir):
    return sorted(workdir.glob("events*"))[-1]


def test_what_lies_after_the_step_is_cut_and_written_again(tmp_path):
    write(tmp_path, 0, range(1, 8))
    assert read(tmp_path) == expect(*range(1, 8))
    write(tmp_path, 4, range(5, 10))
    assert read(tmp_path) == expect(*range(1, 10))
    write(tmp_path, 2, [3])
    assert read(tmp_path) == expect(1, 2, 3)


@pytest.mark.parametrize("cut", [1, 5, 17, 200, 10**6])
def test_what_had_not_reached_the_disk_comes_from_the_metrics(tmp_path, cut):
    write(tmp_path, 0, range(1, 8))
    content = newest(tmp_path).read_bytes()
    newest(tmp_path).write_bytes(content[: max(0, len(content) - cut)])
    write(tmp_path, 6, [7, 8])
    assert read(tmp_path) == expect(*range(1, 9))


def test_files_that_overlap_as_those_of_earlier_versions_lose_what_is_hidden(tmp_path):
    write(tmp_path, 0, range(1, 8))
    file = EventFile(tmp_path, 5)  # hides the steps from 5 on, and repeats them
    for step in (5, 6, 7, 8):
        file.add_scalar("loss", float(step), step)
    file.close()
    lines = [{"step": n, "loss": float(n)} for n in range(1, 9)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    write(tmp_path, 8, [])
    assert read(tmp_path)["loss"] == expect(*range(1, 9))["loss"]


def test_files_that_need_nothing_stay_as_they_are_with_their_pictures(tmp_path):
    writer = write(tmp_path, 0, [1, 2], closed=False)
    for step in (2, 3):
        writer.show(step, {"pairs/nearest": np.zeros((4, 5, 3), np.uint8)})
    writer.flush()
    path = newest(tmp_path)
    before, when = path.read_bytes(), path.stat().st_mtime_ns
    write(tmp_path, 3, [])
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (before, when)
    write(tmp_path, 2, [])
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [each.step for each in events.Images("pairs/nearest")] == [2]


def test_what_is_flushed_is_in_the_file_and_a_damaged_record_ends_it(tmp_path):
    file = EventFile(tmp_path, 1)
    for step in range(1, 30):
        file.add_scalar("loss", 1.0, step)
    file.flush()
    content = newest(tmp_path).read_bytes()
    assert len(list(split_records(content))) == 2 + 29
    assert b"".join(split_records(content)) == content
    first, *_ = split_records(content)
    damaged = bytearray(content)
    damaged[len(first) + 14] ^= 1
    assert list(split_records(bytes(damaged))) == [first]
    assert list(split_records(encode_record(b"") + b"\xff" * 40)) == [encode_record(b"")]
