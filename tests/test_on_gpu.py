"""benchmarks/on_gpu.py with small sizes on a CPU, without packages that it must not need."""

import json
import os
import re
import subprocess
import sys

import pytest

from benchmarks import on_gpu
from benchmarks.gpu import steps, tables, traces
from benchmarks.gpu.measurements import MARKS, MEASUREMENTS
from big_align.configs import mlcd, unicl_imagenet
from tests.manual import ROOT

BLOCKED = (
    *("tensorflow", "tensorflow_datasets", "clu", "orbax", "ml_collections", "beartype", "PIL"),
    *("grain", "tqdm", "torch", "open_clip", "transformers", "torchvision"),
)
BLOCK = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: (
    None if name.partition(".")[0] in BLOCKED else find(name, *rest)
)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs the benchmark in processes that find none of `BLOCKED`."""
    folder = tmp_path_factory.mktemp("on_gpu")
    (folder / "sitecustomize.py").write_text(f"BLOCKED = {BLOCKED}\n{BLOCK}")
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(folder)}
    environment["XLA_FLAGS"] = ""  # one device

    def call(*arguments):
        command = [sys.executable, str(ROOT / "benchmarks/on_gpu.py"), "--tiny", *arguments]
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600
        )

    call.folder = folder
    return call


@pytest.fixture(scope="module")
def whole(run):
    """A run of everything; its output, and what it has written."""
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads((run.folder / "on_gpu.json").read_text())


@pytest.mark.slow
def test_everything_runs_without_what_a_bare_machine_lacks(whole):
    shown, found = whole
    assert list(found["measurements"]) == [each.name for each in MEASUREMENTS]
    assert found["failed"] == {}
    assert found["skipped"]["quick_start"].startswith("tensorflow_datasets, clu, orbax")
    for name, done in found["measurements"].items():
        assert done["rows"] and not any("failed" in row for row in done["rows"]), name
    checked = [row for each in found["measurements"].values() for row in each["rows"]]
    checked = [row for row in checked if "error" in row]
    assert len(checked) > 8 and all(row["met"] for row in checked)
    assert found["environment"]["device"] == "cpu"
    # What needs open_clip is said not to be measured.
    assert shown.count(": not measured") == sum(mark.field in ("speed", "memory") for mark in MARKS)


@pytest.mark.slow
def test_a_second_run_continues_and_is_compared(whole, run):
    path = run.folder / "on_gpu.json"
    found = json.loads(path.read_text())
    before = found["measurements"].pop("attention_50")
    (run.folder / "partial.json").write_text(json.dumps(found))
    done = run("--resume", "--output=partial.json", f"--compare={path}")
    again = json.loads((run.folder / "partial.json").read_text())["measurements"]
    assert again.pop("attention_50")["rows"][0]["what"] == before["rows"][0]["what"]
    assert again == found["measurements"]  # nothing else was measured again
    assert done.stdout.count("s left") == 1
    ratios = [line for line in done.stdout.splitlines() if line.startswith("mlcd_b32: ours")]
    assert ratios[0].endswith("1.00x")


@pytest.mark.slow
def test_a_profile_names_what_takes_the_time(run):
    done = run("--only=attention_50", "--profile=trace", "--output=traced.json")
    assert "ours: the kernels of 3 calls" in done.stdout, done.stdout + done.stderr
    assert " times a call, all" in done.stdout
    # Its modules have no names, but the functions of the package have.
    assert re.search(r"times  forward, models/parts/attention.\w+: dot_general, ", done.stdout)


@pytest.mark.slow
def test_time_that_is_over_leaves_the_rest_out(run):
    done = run("--seconds=0", "--output=late.json")
    found = json.loads((run.folder / "late.json").read_text())
    assert found["measurements"] == {} and "rates" in found["skipped"]
    assert done.returncode == 0


def test_an_unknown_name_is_told(run):
    done = run("--only=nothing")
    assert done.returncode and "--only=nothing is unknown; there are rates" in done.stderr


def test_the_settings_are_those_of_the_config():
    config = mlcd.get_config()
    for node, repeated in (
        (config.model.image, steps.MLCD_IMAGE),
        (config.objective, steps.MLCD),
        (config.optimizer, steps.OPTIMIZER),
        (config.schedule, steps.SCHEDULE),
    ):
        assert repeated == {name: node[name] for name in repeated}
    assert steps.STEPS == config.total_steps
    config = unicl_imagenet.get_config()
    for tower, repeated in ("image", steps.UNICL_IMAGE), ("text", steps.UNICL_TEXT):
        assert repeated == {name: config.model[tower][name] for name in repeated}


CHILD = """
import json, os, sys, time
for name in json.loads(sys.stdin.read())["names"]:
    print("on_gpu start: " + name, flush=True)
    if name == "crashes":
        print("CUDA error", flush=True)
        os._exit(3)
    if name == "hangs":
        time.sleep(60)
    print('on_gpu result: {"rows": [{"what": "it", "ms": 1.0}], "seconds": 1}', flush=True)
"""


def test_what_crashes_or_hangs_is_noted_and_the_rest_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(on_gpu, "SLACK", 1.0)
    (tmp_path / "child.py").write_text(CHILD)
    options = on_gpu.parse_arguments([f"--output={tmp_path / 'found.json'}"])
    names = ["first", "crashes", "second", "hangs", "third"]
    run = on_gpu.Run(options, dict.fromkeys(names, 0.3))
    run.command = [sys.executable, str(tmp_path / "child.py")]
    run.measure(names)
    found = json.loads((tmp_path / "found.json").read_text())
    assert list(found["measurements"]) == ["first", "second", "third"]
    assert found["failed"] == {"crashes": "exit status 3; CUDA error", "hangs": "exit status -9; "}


def test_what_needs_the_whole_device_has_its_own_process():
    assert on_gpu.group(["a", "b", "C", "d", "e", "F"], {"C", "F"}, tiny=False) == [
        ["a", "b"],
        ["C"],
        ["d", "e"],
        ["F"],
    ]
    assert on_gpu.group(["a", "C", "d"], {"C"}, tiny=True) == [["a", "C", "d"]]


def test_marks_are_passed_missed_or_not_measured():
    marks = [
        tables.Mark("speed", "loss", "ours", "speed", least=1.8),
        tables.Mark("memory", "loss", "ours", "memory", most=0.1),
        tables.Mark("time", "step", "ours", "ms", most=130.0),
    ]
    rows = [{"what": "plain", "speed": 9.0}, {"what": "ours", "speed": 1.8, "memory": 0.2}]
    lines = list(tables.format_marks(marks, {"loss": {"rows": rows}}))
    assert [line.rpartition(": ")[2] for line in lines] == [
        "1.800, pass",
        "0.200, MISS",
        "not measured",
    ]


def test_kernels_of_a_trace_are_added_up():
    def event(name, duration, thread, pid=1):
        return {"ph": "X", "name": name, "dur": duration, "pid": pid, "tid": thread}

    names = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/device:GPU:0"}},
        {"ph": "M", "name": "process_name", "pid": 2, "args": {"name": "/host:CPU"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 7, "args": {"name": "Stream #7"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 8, "args": {"name": "XLA Ops"}},
    ]
    events = [event("gemm", 3.0, 7), event("add", 4.0, 7), event("gemm", 2.0, 7)]
    events += [event("fusion", 9.0, 8), event("python", 9.0, 7, pid=2)]
    events += [event("add_2", 0.5, 7) | {"args": {"hlo_op": "add.2"}}]
    named = {"add.2": "forward, image: add", "add": "backward, image: add"}
    assert list(traces.sum_kernels(names + events, named).items()) == [
        ("gemm", (5.0, 2)),
        ("backward, image: add", (4.0, 1)),
        ("forward, image: add", (0.5, 1)),
    ]
