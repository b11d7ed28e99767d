"""A run leaves a report when it ends, when it is stopped and when it goes on."""

import json
import shutil
import signal

import numpy as np
import pytest
from absl.testing import flagsaver

from big_align.config.overrides import load_config
from big_align.core.errors import Stopped
from big_align.pages.run_report import report
from big_align.pages.run_report.run_record import read_record
from big_align.runs import evaluate, train
from big_align.tools import command_line
from tests.run_main import TINY, Run


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two processes, the second of which went on with the first."""
    workdir = tmp_path_factory.mktemp("finished")
    short = ("--config.schedule.decay=constant", "--config.checkpoint.every=2")
    command = {"command": "python main.py --config=x", "config": "x", "changes": {"seed": [0, 1]}}
    for steps in (2, 4):
        config = load_config(TINY, f"--config.total_steps={steps}", *short)
        results = train.run(config, str(workdir), command=command)
    return workdir, results


@pytest.mark.slow
def test_the_report_has_the_numbers_of_the_last_evaluation(finished):
    workdir, results = finished
    record = read_record(str(workdir))
    assert {name: values[-1] for name, values in record.evaluations.items()} == {
        name: (4, value) for name, value in results.items()
    }
    page = (workdir / "report.html").read_text()
    assert page == report.describe_run(record)
    assert "confused classes" in page and "captions with their nearest images" in page
    assert [start["step"] for start in record.starts] == [0, 2]
    assert record.last_start["examples"] == {"training": 1437, "digits": 360, "pairs": 360}
    assert record.last_start["changes"] == {"seed": [0, 1]}


@pytest.mark.slow
def test_an_evaluation_afterwards_is_in_the_report(finished, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(finished[0], workdir)
    neighbors = "--config.evaluators.neighbors."
    source = ("source.name=digits", "source.split=test")
    fields = ("name=knn", *source, "transform=resize(10)|central_crop(8)")
    kind = [neighbors + field for field in fields]
    found = evaluate.run(load_config(TINY, *kind), str(workdir))
    page = (workdir / "report.html").read_text()
    assert page == report.describe_run(read_record(str(workdir)))
    assert "neighbors/r1" in found and "neighbors/r1" in page
    assert "neighbors/r1" not in (finished[0] / "report.html").read_text()


@pytest.mark.slow
def test_pictures_are_of_what_was_evaluated(finished):
    workdir, results = finished
    pictures = json.loads((workdir / "pictures.json").read_text())
    counts = np.array(pictures["exhibits"]["digits"][0]["counts"])
    assert pictures["step"] == 4 and counts.sum() == 360
    assert np.trace(counts) / 360 == pytest.approx(results["digits/top1"])
    (examples,) = pictures["data"]["first batch"]
    assert all(row["query"]["image"] and row["found"] for row in examples["rows"])


@pytest.mark.slow
def test_a_run_that_is_told_to_stop_leaves_a_report(tmp_path):
    run = Run(tmp_path, "--config.total_steps=100000", "--config.evaluators={}", devices=1)
    run.wait_for_step(3)
    run.signal(signal.SIGTERM)
    assert run.wait() == Stopped.STATUS, run.err
    record = read_record(str(tmp_path))
    assert record.step == run.steps[-1] < 100_000
    assert (tmp_path / "report.html").read_text() == report.describe_run(record)
    assert record.last_start["config"] == TINY
    assert record.last_start["changes"]["total_steps"] == [8, 100_000]
    assert f"--workdir={tmp_path}" in record.last_start["command"]


def test_what_a_command_line_changes_is_known(monkeypatch):
    flags = [f"--config={TINY}:2", "--config.seed=5", "--config.objective.name=siglip"]
    argv = ["main.py", *flags, "--workdir=here"]
    monkeypatch.setattr(command_line.sys, "orig_argv", ["/usr/bin/python3", *argv])
    monkeypatch.setattr(command_line, "_given", [])
    with flagsaver.flagsaver():
        command_line.define_flags()
        command_line._parse(argv)
        described = command_line.describe_command()
    assert described["config"] == f"{TINY}:2"
    assert described["command"] == f"python main.py {' '.join(flags)} --workdir=here"
    changes = described["changes"]
    assert changes["seed"] == [0, 5] and changes["objective.name"] == ["align", "siglip"]
    assert {field.split(".")[0] for field in changes} == {"seed", "objective"}
